"""Zero- and few-shot prompting: templates, demonstrations, candidate answers."""
