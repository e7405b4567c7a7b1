"""Who a node is: its clients, what they own, and what their owner allows."""
