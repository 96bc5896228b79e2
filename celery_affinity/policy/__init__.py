"""The scheduling rules that production, the lab and the tests share: score, placement and slot arithmetic. Pure Python."""
