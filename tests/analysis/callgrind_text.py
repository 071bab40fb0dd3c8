"""What callgrind 3.19 dumped of Pillow, cut; the summaries are those of the cut."""

SPACE = " "  # at the ends of lines, which an editor might remove

DECODE = f"""\
# callgrind format
version: 1
creator: callgrind-3.19.0
pid: 31164
cmd:  python c.py
part: 1


desc: Timerange: Basic block 25087130 - 25170151
desc: Trigger: Client Request

positions: line
events: Ir
summary: 60320

fn=(4122) 0x0000000004936750
0 11
cob=(4) /usr/lib/x86_64-linux-gnu/libc.so.6
cfi=(172) ./malloc/./malloc/malloc.c
cfn=(4124) free
calls=11 3350{SPACE}
0 1722

ob=(65) /venv/pillow.libs/libjpeg-6dc8d115.so.62.4.0
fl=(185) ???
fn=(3838) 0x000000000006c0a0
0 19584
cfn=(3882) 0x000000000009ed50
calls=384 0{SPACE}
0 1365888
0 6144
cfn=(3882)
calls=384 0{SPACE}
0 1365888
0 19200
cfn=(3844) 0x000000000006c1f0
calls=384 0{SPACE}
0 768
0 8448
cfn=(3850) 0x000000000009fc10
calls=768 0{SPACE}
0 1544448
0 6144

fn=(3844)
0 768

ob=(4)
fl=(172)
fn=(4124)
3350 21

totals: 60320
"""

FLIP = f"""\
# callgrind format
version: 1
creator: callgrind-3.19.0
part: 3

positions: line
events: Ir
summary: 353047

ob=(60) /venv/PIL/_imaging.cpython-311-x86_64-linux-gnu.so
fl=(226) /project/src/libImaging/Geometry.c
fn=(5554) ImagingFlipLeftRight
22 4
-4 7
+4 3
+4 1
+1 2
-1 1
+1 2
+16 1
-12 2
cfi=(171) /project/src/libImaging/Storage.c
cfn=(4342) ImagingCopyPalette
calls=1 777{SPACE}
* 11
* 1
+12 2
cfi=(168) /project/src/libImaging/Storage2.c
cfn=(2572) ImagingSectionEnter
calls=1 199{SPACE}
* 152
* 1
+3 3
+11 2
cfi=(168)
cfn=(4096) ImagingSectionLeave
calls=1 205{SPACE}
* 264
* 1
+5 8
-9 352812
0 194

totals: 353047
"""
