"""Files that commands write, as pydantic models; every module here is one kind."""
