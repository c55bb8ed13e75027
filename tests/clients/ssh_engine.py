"""A machine with a container engine that is reached by SSH, on a port of its own: ssh_engine.py FOLDER SOCKET.

Writes to the folder what OpenSSH's client needs for the host `engine`: keys, known hosts, and a file of settings. Takes
the one command that Docker's clients use, and connects it to the engine's socket.
"""

import asyncio
import os
import sys
from pathlib import Path

import asyncssh

COMMAND = "docker system dial-stdio"
FOLDER, SOCKET = Path(sys.argv[1]), sys.argv[2]


async def pipe(reader, writer):
    while piece := await reader.read(1 << 16):
        writer.write(piece)
        await writer.drain()
    writer.write_eof()


async def serve(process):
    if process.command != COMMAND:
        process.stderr.write(f"{process.command}: not here\n".encode())
        process.exit(127)
        return
    reader, writer = await asyncio.open_unix_connection(SOCKET)
    both = [asyncio.create_task(pipe(process.stdin, writer)), asyncio.create_task(pipe(reader, process.stdout))]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    await both[1]
    both[0].cancel()
    writer.close()
    process.exit(0)


async def main():
    host, client = asyncssh.generate_private_key("ssh-ed25519"), asyncssh.generate_private_key("ssh-ed25519")
    client.write_private_key(FOLDER / "key")
    os.chmod(FOLDER / "key", 0o600)
    client.write_public_key(FOLDER / "key.pub")
    server = await asyncssh.listen("127.0.0.1", 0, server_host_keys=[host], process_factory=serve, encoding=None,
                                   authorized_client_keys=str(FOLDER / "key.pub"))
    port = server.get_port()
    public = host.export_public_key().decode().strip()
    (FOLDER / "known").write_text(f"[127.0.0.1]:{port} {public}\n")
    lines = ["Host engine", "HostName 127.0.0.1", f"Port {port}", "User tester", f"IdentityFile {FOLDER}/key",
             "IdentitiesOnly yes", f"UserKnownHostsFile {FOLDER}/known"]
    (FOLDER / "config").write_text("\n".join(lines) + "\n")
    print("ready", flush=True)
    await server.wait_closed()


asyncio.run(main())
