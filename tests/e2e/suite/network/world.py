"""The outside of a test: a namespace with every address in question, which greets whoever connects and answers names."""

import socket
import struct
import threading

NAMES = {"one.test": "203.0.113.10", "sub.one.test": "203.0.113.11", "two.test": "203.0.113.12"}


def greet(port):
    listener = socket.socket(socket.AF_INET6)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("::", port))
    listener.listen(64)
    while True:
        stream, _ = listener.accept()
        own = stream.getsockname()[0].removeprefix("::ffff:")
        threading.Thread(target=answer, args=(stream, own), daemon=True).start()


def answer(stream, own):
    with stream:
        stream.sendall(own.encode())
        while stream.recv(100):
            stream.sendall(b"!")


def names():
    server = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    server.bind(("::", 53))
    while True:
        question, asker = server.recvfrom(4096)
        server.sendto(reply(question), asker)


def reply(question):
    labels, at = [], 12
    while question[at]:
        labels.append(question[at + 1 : at + 1 + question[at]].decode().lower())
        at += 1 + question[at]
    kind = struct.unpack(">H", question[at + 1 : at + 3])[0]
    address = NAMES.get(".".join(labels))
    answers = 1 if address and kind == 1 else 0
    head = question[:2] + struct.pack(">HHHHH", 0x8180 if address else 0x8183, 1, answers, 0, 0)
    record = struct.pack(">HHHIH", 0xC00C, 1, 1, 60, 4) + socket.inet_aton(address) if answers else b""
    return head + question[12 : at + 5] + record


for port in (80, 443):
    threading.Thread(target=greet, args=(port,), daemon=True).start()
names()
