"""The tool loop as flows and values, for agents and routers alike. `agent.loop` is its public face."""
