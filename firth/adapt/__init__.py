"""Parameter-efficient fine-tuning: LoRA, adapters, prefix and prompt tuning, BitFit, IA3."""
