"""nano-prm: an adapter on nano that judges an answer step by step.

`form` is what the judge reads, `faults` breaks correct solutions, `labels` makes the labelled steps, `lora` is the adapter,
`train` makes it from nano's weights in one run, `measure` holds the statistics of the report.
"""
