"""What is learned and read: one folder a task, and the protocol that all of them follow."""
