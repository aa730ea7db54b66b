"""The hands and eyes: the only place, beside the guest agent, that touches the world."""
