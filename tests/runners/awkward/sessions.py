import os, subprocess
print(os.getpid() == os.getpgid(0), os.getsid(0), os.getppid())
os.setsid(); print(os.getpgid(0) == os.getpid())
done = subprocess.run("echo out; kill -9 $$", shell=True, capture_output=True, start_new_session=True); print(done.returncode, done.stdout)
