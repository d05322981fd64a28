"""Questions of our own with known answers: paraphrases, and near misses that one word tells apart."""
