import os, subprocess, time
subprocess.Popen(["setsid", "sh", "-c", "sleep 0.5; echo late > /data/late; echo late"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(1); os.close(2); time.sleep(0.6); open("/data/daemon", "w").close()
    os._exit(0)
os.wait(); print("over")
