"""The other end of a widget's messages, where a notebook has its page."""

from __future__ import annotations

from typing import Any

from comm.base_comm import BaseComm

from tensorstore_ds.annex.viewing.widget import StoreWidget


class PageComm(BaseComm):
    """Keeps what the kernel sends; `receive` is what the page sends."""

    def __init__(self, widget: StoreWidget) -> None:
        self.sent: list[tuple[dict[str, Any], list[bytes]]] = []
        super().__init__(comm_id=widget.comm.comm_id, primary=False)
        widget.comm = self

    def publish_msg(
        self, msg_type: str, data: Any = None, metadata: Any = None, buffers: Any = None, **keys: Any
    ) -> None:
        if msg_type == "comm_msg":
            self.sent.append((data, [bytes(buffer) for buffer in buffers or ()]))

    def receive(self, data: dict[str, Any]) -> list[tuple[dict[str, Any], list[bytes]]]:
        """Give the kernel a message; what it sends meanwhile."""
        before = len(self.sent)
        self.handle_msg({"content": {"data": data}, "buffers": []})
        return self.sent[before:]

    def custom(self, content: Any) -> list[tuple[dict[str, Any], list[bytes]]]:
        """Give the kernel a message of the page; the contents and buffers of its answers."""
        answers = self.receive({"method": "custom", "content": content})
        return [(data["content"], buffers) for data, buffers in answers]
