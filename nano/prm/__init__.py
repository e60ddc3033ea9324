"""nano-prm: an adapter on nano that judges an answer step by step.

`form` is what the judge reads, `faults` and `slips` break correct solutions, `own` takes nano's own answers, `labels` makes labelled
steps of both, `lora` is the adapter, `judge` the judge in PyTorch, `train` makes it from nano's weights in one run, `report` and
`measure` say what it is worth, `calibrate` fits another reading.
"""
