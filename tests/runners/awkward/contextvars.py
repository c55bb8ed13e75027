import contextvars, decimal, locale, time, datetime, asyncio
print(list(contextvars.copy_context().items()), decimal.getcontext(), locale.getlocale(), time.tzname)
print(datetime.datetime(2024, 1, 1).astimezone().tzinfo, datetime.datetime.strptime("2024-02-03", "%Y-%m-%d"))
try: asyncio.get_running_loop()
except RuntimeError as error: print(error)
