import subprocess, sys
for form in ["0", "3", "-1", "256", "None", "'text'", "True", "2.5", "(1, 2)", "[]", "object.__name__", "10**20"]:
    done = subprocess.run([sys.executable, "-c", f"import sys; sys.exit({form})"], capture_output=True)
    print(form, done.returncode, done.stderr)
sys.exit("the last word")
