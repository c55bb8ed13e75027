import os, signal
signal.signal(signal.SIGUSR1, lambda number, frame: print("got", number, frame.f_code.co_name))
os.kill(os.getpid(), signal.SIGUSR1)
signal.setitimer(signal.ITIMER_REAL, 0.05)
signal.signal(signal.SIGALRM, lambda *_: print("alarm"))
signal.pause()
try: os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt: print("interrupt")
os.kill(os.getpid(), signal.SIGINT)
