"""A false emulator of Atari games, whose episodes are known exactly."""

from __future__ import annotations

from typing import Any, NamedTuple

FALSE_FRAMES = 200  # brightness of the first screen; each frame is darker by 1


class FalseAction(NamedTuple):
    """An action of ale_py."""

    value: int


class FalseEmulator:
    """Replaces `ALEInterface`: frame n gives n points; a life is lost in frame 6; the game ends
    with frame 12.

    No-ops before an episode count as frames, too.
    """

    def __init__(self) -> None:
        self.actions: list[int] = []
        self.last_frame: int | None = 12  # None: endless
        self.resets = self._frame = 0

    def __getattr__(self, name: str) -> Any:
        """Ignore settings, and the state after loading."""
        if name in {"setFloat", "setInt", "loadROM", "cloneState", "restoreState"}:
            return lambda *arguments: None
        raise AttributeError(name)

    def getMinimalActionSet(self) -> list[FalseAction]:
        return [FalseAction(value) for value in range(4)]

    getLegalActionSet = getMinimalActionSet

    def getScreenDims(self) -> tuple[int, int]:
        return 3, 2

    def getScreenGrayscale(self, screen: Any) -> None:
        screen[:] = max(FALSE_FRAMES - self._frame, 0)

    def getRAM(self) -> list[int]:
        return [self._frame]

    def getEpisodeFrameNumber(self) -> int:
        return self._frame

    def reset_game(self) -> None:
        self._frame, self.resets = 0, self.resets + 1

    def act(self, action: int) -> int:
        self.actions.append(action)
        self._frame += 1
        return self._frame

    def lives(self) -> int:
        return 3 if self._frame < 6 else 2

    def game_over(self) -> bool:
        return self.last_frame is not None and self._frame >= self.last_frame
