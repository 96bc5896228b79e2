"""The scheduling rules that production, lab and tests share: score, placement, slot arithmetic. Pure Python."""
