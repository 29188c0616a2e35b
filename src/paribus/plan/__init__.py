"""Plan the ablation: read a question, expand it into trials, see what stands in the way."""
