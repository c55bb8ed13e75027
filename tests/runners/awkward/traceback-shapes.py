import traceback, sys
def inner(): raise ValueError("inner")
def outer():
    try: inner()
    except ValueError as error: raise KeyError("outer") from error
try: outer()
except KeyError: traceback.print_exc(); print(traceback.format_stack(), traceback.extract_stack())
print(sys._getframe().f_back, sys._getframe().f_code.co_filename, sys._getframe().f_lineno)
try: raise ExceptionGroup("many", [ValueError(1), TypeError(2)])
except* ValueError as group: print(group.exceptions)
exec(compile("def generated():\n    return 1 / 0\n", "<made>", "exec"))
generated()
