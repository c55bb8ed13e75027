import logging
logging.basicConfig(format="%(relativeCreated)d")
record = logging.LogRecord("a", 1, "p", 1, "m", (), None)
print(record.relativeCreated < 2000)
