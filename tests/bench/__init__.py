"""What the tool costs, measured in one run beside what it is compared with, so that the machine's speed cancels."""
