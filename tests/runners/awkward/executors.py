from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
import asyncio, math
if __name__ == "__main__":
    with ProcessPoolExecutor(2) as pool: print(list(pool.map(math.factorial, range(6))))
    with ThreadPoolExecutor(2) as pool: print(list(pool.map(math.sqrt, [4, 9])))
    async def main():
        process = await asyncio.create_subprocess_exec("echo", "sub", stdout=asyncio.subprocess.PIPE)
        print((await process.communicate())[0], await asyncio.to_thread(sum, [1, 2]), process.returncode)
    asyncio.run(main())
