"""The lab's arithmetic of memory, at chosen moments."""

from __future__ import annotations

from tests.lab.ledger import Ledger, Owner, status


def owner(**more: object) -> Owner:
    row = {"pid": 7, "start": "1", "kind": "rank", "group": "g", "rank": 0, "gpus": {"3": 1000}, "ram_gib": 40}
    return Owner.from_row({**row, **more}, 100.0)


def test_grows_while_it_loads() -> None:
    books = Ledger(owners=[owner(load_s=10)])
    assert [books.rows(t)[3, 7] for t in (105.0, 110.0, 200.0)] == [500, 1000, 1000]


def test_gives_back_over_its_release_time_without_an_owner() -> None:
    books = Ledger(owners=[owner(release_s=10)])
    books.owners[0].die(200.0)
    assert books.rows(201.0) == {}
    assert [books.releasing(t)[3] for t in (200.0, 205.0, 210.0)] == [1000, 500, 0]
    assert books.ram(205.0)["unowned"] == 20
    books.forget_spent(210.0)
    assert books.owners == []


def test_at_once_without_a_release_time() -> None:
    books = Ledger(owners=[owner()])
    books.owners[0].die(200.0)
    assert books.releasing(200.0) == {3: 0}
    assert books.available_gib(200.0) == 445


def test_meminfo_keeps_its_length_and_its_sum() -> None:
    full, empty = Ledger(owners=[owner(ram_gib=440)]), Ledger()
    assert len(full.meminfo(200.0)) == len(empty.meminfo(200.0))
    words = [line.replace(":", "").split() for line in empty.meminfo(0.0).splitlines()]
    figures = {word[0]: int(word[1]) for word in words}
    named = ("MemFree", "Buffers", "Cached", "AnonPages", "Slab", "PageTables", "KernelStack", "Percpu", "VmallocUsed")
    assert 0 <= figures["MemTotal"] - sum(figures[name] for name in named) < 3 << 20


def test_a_reboot_keeps_only_a_leak_that_outlives_it() -> None:
    books = Ledger(owners=[owner()], ram_leak_gib=318)
    books.reboot(keeps_leak=True)
    assert (books.owners, books.ram_leak_gib) == ([], 318)
    books.reboot(keeps_leak=False)
    assert books.ram_leak_gib == 0


def test_status_of_the_living_and_the_dead() -> None:
    one, text = owner(), "Name:\tx\nVmRSS:\t 1 kB\nRssAnon:\t 1 kB\nThreads:\t1\n"
    assert f"RssAnon:\t{40 << 20:>11} kB" in status(text, one, 200.0)
    one.die(200.0)
    assert status(text, one, 200.0) == "Name:\tx\nThreads:\t1\n"
