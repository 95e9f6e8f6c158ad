"""The paper, reproduced: one file for each table and figure; `peppermill paper` runs them."""
