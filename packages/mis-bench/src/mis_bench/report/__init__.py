"""`mis-bench report`: one page of all that was measured."""
