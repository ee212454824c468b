// faultfs SRC MNT: loopback FUSE; while SRC/../fault holds a word (eio, enospc, slow) data writes and fsyncs fail so.
package main

import (
	"context"
	"log"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

var ctl = os.Args[1] + ".fault"

func fault() syscall.Errno {
	b, _ := os.ReadFile(ctl)
	switch strings.TrimSpace(string(b)) {
	case "eio":
		return syscall.EIO
	case "enospc":
		return syscall.ENOSPC
	case "slow":
		time.Sleep(2 * time.Second)
	}
	return 0
}

type node struct{ fs.LoopbackNode }
type file struct{ *fs.LoopbackFile }

func wrap(f fs.FileHandle, e syscall.Errno) (fs.FileHandle, syscall.Errno) {
	if e != 0 {
		return nil, e
	}
	return &file{f.(*fs.LoopbackFile)}, 0
}
func (n *node) Open(c context.Context, fl uint32) (fs.FileHandle, uint32, syscall.Errno) {
	f, k, e := n.LoopbackNode.Open(c, fl)
	h, e := wrap(f, e)
	return h, k, e
}
func (n *node) Create(c context.Context, nm string, fl, m uint32, o *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	if e := fault(); e != 0 {
		return nil, nil, 0, e
	}
	i, f, k, e := n.LoopbackNode.Create(c, nm, fl, m, o)
	h, e := wrap(f, e)
	return i, h, k, e
}

// Without this the kernel writes to the file below by itself and Write is never asked.
func (f *file) PassthroughFd() (int, bool) { return -1, false }
func (f *file) Write(c context.Context, d []byte, o int64) (uint32, syscall.Errno) {
	if e := fault(); e != 0 {
		return 0, e
	}
	return f.LoopbackFile.Write(c, d, o)
}
func (f *file) Fsync(c context.Context, fl uint32) syscall.Errno {
	if e := fault(); e != 0 {
		return e
	}
	return f.LoopbackFile.Fsync(c, fl)
}

func main() {
	r := &fs.LoopbackRoot{Path: os.Args[1]}
	r.NewNode = func(r *fs.LoopbackRoot, _ *fs.Inode, _ string, _ *syscall.Stat_t) fs.InodeEmbedder {
		return &node{fs.LoopbackNode{RootData: r}}
	}
	root := &node{fs.LoopbackNode{RootData: r}}
	r.RootNode = root
	s, err := fs.Mount(os.Args[2], root, &fs.Options{MountOptions: fuse.MountOptions{AllowOther: true, DirectMount: true, FsName: "faultfs"}})
	if err != nil {
		log.Fatal(err)
	}
	s.Wait()
}
