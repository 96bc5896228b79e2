"""The scheduling rules that production and lab share: score, priorities of workers, slot arithmetic. Pure Python."""
