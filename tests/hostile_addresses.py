"""Address texts with the right verdict: what may be Vane's address, and what may not, for every face to try.

`ALLOWED` maps a text to (scheme, host, port, path); `REFUSED` lists texts. `NORMALISED_FIRST` are those refused
ones that a setting may take all the same, since settings add a scheme and drop outer blanks first.
"""

from __future__ import annotations

from itertools import product
from typing import Final

ALLOWED: Final[dict[str, tuple[str, str, int, str]]] = {
    f"{written_scheme}://{written_host}{written_port}{written_path}": (
        scheme,
        host,
        port or {"http": 80, "https": 443}[scheme],
        path,
    )
    for (written_scheme, scheme), (written_host, host), (written_port, port), (written_path, path) in product(
        {"http": "http", "https": "https", "HTTP": "http", "hTTpS": "https"}.items(),
        {"127.0.0.1": "127.0.0.1", "localhost": "localhost", "LocalHost": "localhost", "[::1]": "::1"}.items(),
        {"": None, ":1": 1, ":3000": 3000, ":65535": 65535}.items(),
        {
            "": "",
            "/": "",
            "/vane": "/vane",
            "/a.b/~c_d-e/": "/a.b/~c_d-e",
            "/...": "/...",
            "/API/search": "/API/search",
        }.items(),
    )
}

_FOREIGN_HOSTS: Final = (
    # other machines
    *("192.168.1.20", "10.0.0.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "8.8.8.8", "224.0.0.1"),
    *("255.255.255.255", "192.0.2.1", "vane", "vane.lan", "vane.local", "vane.example.org", "host.docker.internal"),
    *("[2001:db8::1]", "[fe80::1]", "[fd00::1]", "[ff02::1]", "[64:ff9b::7f00:1]", "xn--lcalhost-54a"),
    # every interface, and the rest of 127.0.0.0/8
    *("0.0.0.0", "0", "0.0", "00.00.00.00", "0x0", "[::]", "[0:0:0:0:0:0:0:0]", "[::0]", "[::0.0.0.0]"),
    *("127.0.0.0", "127.0.0.2", "127.0.1.1", "127.1.1.1", "127.255.255.254", "127.255.255.255"),
    # loopback in other words
    *("127.1", "127.0.1", "127", "127.0.0.01", "127.00.0.1", "127.000.000.001", "0127.0.0.1", "0177.0.0.1"),
    *("0177.0.0.01", "0x7f.0.0.1", "0x7f.1", "0X7F.0.0.0x1", "2130706433", "0x7f000001", "017700000001"),
    *("127.0.0.1.", "127.0.0.1..", ".127.0.0.1", "127..0.0.1"),
    *("127.0.0.1.0", "127.0.0.257", "127.0.0.-1", "127.0.0.1e0"),
    *("[127.0.0.1]", "[localhost]", "[::ffff:127.0.0.1]"),
    *("[::FFFF:7F00:1]", "[0:0:0:0:0:ffff:127.0.0.1]", "[::127.0.0.1]"),
    *("[0:0:0:0:0:0:0:1]", "[0::1]", "[::01]", "[::0001]", "[0000::1]", "[::0:1]", "[::1.]", "[::1%lo]", "[::1%25lo]"),
    *("[::1%]", "[::1/128]", "[::2]", "[::1", "::1]", "::1", "[[::1]]", "[]", "[:]", "[v1.::1]", "(::1)", "{::1}"),
    # names that begin, end or look like it
    *("localhost.", "localhost..", ".localhost", "localhost.localdomain", "localhost6", "ip6-localhost", "loopback"),
    *("localhost.example.org", "127.0.0.1.example.org", "127.0.0.1.nip.io", "127-0-0-1.sslip.io", "localtest.me"),
    *("notlocalhost", "my-localhost", "localhost-vane", "localhosts", "localhos", "lo", "vane.localhost", "local host"),
    *("localhost,example.org", "localhost;example.org", "localhost|example.org"),
    *("127.0.0.1_", "1270.0.1", "127.0.0.1a"),
    # characters that some parser turns into others
    *("loc\u0430lhost", "localho\u017ft", "\u24dbocalhost", "\uff4c\uff4f\uff43\uff41\uff4c\uff48\uff4f\uff53\uff54"),
    *("127\u30020\u30020\u30021", "127\uff0e0\uff0e0\uff0e1", "127\uff610\uff610\uff611", "127\u20240\u20240\u20241"),
    *("\uff11\uff12\uff17.0.0.1", "\u0661\u0662\u0667.0.0.1"),
    *("\u2460\u2461\u2466.0.0.1", "127.0.0.\u00b9", "127.0.0.\U0001d7cf"),
    *("local\u00adhost", "local\u200bhost", "local\u200dhost", "local\ufeffhost", "local\u2060host", "\u202elocalhost"),
    *("localhost\u3002", "[\uff1a\uff1a1]", "[::\uff11]", "local\ud800host", "\U000e006cocalhost", "127.0.0.1\u0338"),
    *("%6c%6f%63alhost", "localhost%2eexample.org", "localhost%00"),
    *("127%2e0%2e0%2e1", "%5b::1%5d", "localhost%20", "%"),
    # nothing at all
    *("", " ", ".", "..", "-", "_", "*", "*.localhost", "~"),
)  # fmt: skip

_USERINFO: Final = (
    "http://user@127.0.0.1:3000",
    "http://user:password@localhost:3000",
    "http://:@localhost",
    "http://@127.0.0.1:3000",
    "http://127.0.0.1@example.org",
    "http://127.0.0.1:3000@example.org",
    "http://localhost:80@example.org:3000/api",
    "http://[::1]@example.org",
    "http://127.0.0.1:3000\\@example.org",
    "http://example.org\\@127.0.0.1:3000",
    "http://example.org#@127.0.0.1:3000",
    "http://example.org?@127.0.0.1:3000",
    "http://example.org/@127.0.0.1:3000",
    "http://example.org;@localhost",
    "http://127.0.0.1%40example.org",
    "http://127.0.0.1:3000%40example.org",
    "http://localhost\uff20example.org",
    "http://user@host@127.0.0.1",
    "http://localhost&@example.org#@localhost",
)

_SCHEMES: Final = (
    *(
        f"{scheme}://127.0.0.1:3000"
        for scheme in ("ftp", "file", "ws", "wss", "gopher", "socks5", "httpx", "htt", "http+unix")
    ),
    *(
        f"{scheme}://localhost"
        for scheme in ("javascript", "data", "unix", "http ", " http", "http\u017f", "h\uff54tp", "")
    ),
    *(
        "http:127.0.0.1:3000",
        "http:/127.0.0.1:3000",
        "http:///127.0.0.1:3000",
        "http:////127.0.0.1",
        "http:\\\\127.0.0.1",
    ),
    *("http:\\/127.0.0.1", "http:/\\127.0.0.1", "http//127.0.0.1", "http;//127.0.0.1", "http\uff1a//127.0.0.1"),
    *(
        "//127.0.0.1:3000",
        "/127.0.0.1:3000",
        "://127.0.0.1",
        "\\\\127.0.0.1",
        "http://http://127.0.0.1",
        "https:http://localhost",
    ),
    *("javascript:alert(1)//http://127.0.0.1", "url:http://127.0.0.1", "view-source:http://localhost"),
    *("<http://127.0.0.1:3000>", '"http://127.0.0.1:3000"', "'http://127.0.0.1:3000'", "(http://127.0.0.1:3000)"),
    *(
        "",
        ".",
        "/",
        "api/search",
        "3000",
        ":3000",
        "http",
        "http:",
        "http:/",
        "http://",
        "https://",
        "http://:",
        "http://:3000",
    ),
)

_PORTS: Final = tuple(
    f"http://127.0.0.1{port}"
    for port in (
        *(
            ":",
            ":0",
            ":00",
            ":03000",
            ":65536",
            ":99999",
            ":100000",
            ":3000000000000",
            ":" + "9" * 1_900,
            ":-1",
            ":+80",
        ),
        *(
            ": 80",
            ":80 ",
            ":8o",
            ":0x50",
            ":80:90",
            ":80.0",
            ":8_0",
            "::80",
            ":\uff18\uff10",
            ":\u0668\u0660",
            ":http",
            ";80",
            ",80",
        ),
    )
)

_PATHS: Final = tuple(
    f"http://127.0.0.1:3000{path}"
    for path in (
        *("//", "///", "//api", "/a//b", "/a//", "/.", "/.."),
        *("/./", "/../", "/a/..", "/a/../b", "/a/./b", "/..;/a", "/a/.."),
        *("/%2e%2e", "/%2f", "/a%20b", "/%", "/\\", "\\", "\\example.org"),
        *("/a\\b", "/a b", "/ ", "/a;b", "/a:b", "/a@b", "/a=b"),
        *("/a+b", "/a,b", "/a!", "/a*", "/(a)", "/$a", "/a&b"),
        *("/'a'", '/"a"', "/<a>", "/{a}", "/[a]", "/|", "/^", "/`", "/\u00e9"),
        *("?", "?a=b", "/?", "/?a", "/a?b", "#", "#a"),
        *("/#", "/a#b", "?#", "/\u202e", "/\ud800", "/\uff0e\uff0e", "/a\u3000"),
    )
)  # fmt: skip

_BLANKS: Final = (
    "\0",
    "\t",
    "\n",
    "\r",
    "\r\n",
    "\v",
    "\f",
    "\x1b[2J",
    "\x1c",
    "\x7f",
    "\x85",
    " ",
    "\xa0",
    "\u2028",
    "\u3000",
    "\ufeff",
)
_BETWEEN: Final = (
    "{}http://127.0.0.1:3000",
    "http:{}//127.0.0.1:3000",
    "http://{}127.0.0.1:3000",
    "http://127.0{}.0.1:3000",
)
_AFTER: Final = (
    "http://127.0.0.1{}:3000",
    "http://127.0.0.1:30{}00",
    "http://127.0.0.1:3000{}",
    "http://127.0.0.1:3000/a{}",
)
_BROKEN_UP: Final = tuple(place.format(blank) for place, blank in product(_BETWEEN + _AFTER, _BLANKS))

_INJECTIONS: Final = (
    "http://127.0.0.1:3000 http://example.org",
    "http://127.0.0.1:3000,http://example.org",
    "http://127.0.0.1:3000\r\nHost: example.org",
    "http://127.0.0.1:3000/\r\n\r\nGET / HTTP/1.1",
    "http://127.0.0.1\0.example.org",
    "http://localhost\n.example.org",
    "http://127.0.0.1:3000/" + "a" * 2_000,
    "http://" + "1" * 100_000,
    "http://" + "[" * 50_000,
    "http://127.0.0.1" + "/a" * 500_000,
    "http://127.0.0.1:3000" + " " * 100_000,
    "http://${HOST}:3000",
    "http://{host}:3000",
    "http://$(hostname):3000",
    "http://`hostname`:3000",
)

NORMALISED_FIRST: Final = (
    *("127.0.0.1", "127.0.0.1:3000", "localhost", "localhost:3000", "[::1]", "[::1]:3000", "::1"),
    *(" http://127.0.0.1:3000", "http://127.0.0.1:3000 ", "http://127.0.0.1:3000\n", "\thttp://localhost\r\n"),
)

REFUSED: Final = tuple(
    dict.fromkeys(
        (
            *(f"http://{host}:3000" for host in _FOREIGN_HOSTS),
            *(f"https://{host}/vane" for host in _FOREIGN_HOSTS),
            *(_USERINFO + _SCHEMES + _PORTS + _PATHS + _BROKEN_UP + _INJECTIONS + NORMALISED_FIRST),
        )
    )
)
NOT_TEXT: Final = (None, True, 3000, 3.5, b"http://127.0.0.1:3000", ["http://127.0.0.1:3000"], {}, object(), type)
