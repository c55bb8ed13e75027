import sqlite3, tempfile, shutil, csv, os, pathlib
c = sqlite3.connect("/data/x.db"); c.execute("create table t(a)"); c.executemany("insert into t values(?)", [(i,) for i in range(5)]); c.commit(); print(c.execute("select sum(a) from t").fetchone()); c.close(); os.remove("/data/x.db")
kept = open("/data/unclosed.txt", "w"); kept.write("flushed at the end")
with tempfile.TemporaryDirectory() as folder: print(os.path.dirname(folder))
t = tempfile.TemporaryDirectory(); print(os.path.isdir(t.name))
csv.writer(open("/data/rows.csv", "w")).writerow([1, "a,b"])
print(open("/data/rows.csv").read(), os.path.abspath("x"), pathlib.Path(__file__).resolve(), pathlib.Path.home())
