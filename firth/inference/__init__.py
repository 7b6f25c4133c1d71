"""What people do with a trained model: functions of a network, a tokenizer and texts."""
