/* A disk that fails, and one that writes down what reaches it. Loaded with LD_PRELOAD; does nothing until told. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int trace_file = -1;
static long syncs_left, writes_left; /* 0: none fails */

/* What follows is called by the tests. */

void fail_sync(long count) { syncs_left = count; }
void fail_space(long count) { writes_left = count; }
void heal(void) { syncs_left = writes_left = 0; }

struct __attribute__((packed)) event {
    char kind;
    uint32_t path, data;
    int64_t offset;
};

static void put(char kind, const char *path, int64_t offset, const void *data, size_t size)
{
    struct event event = {kind, (uint32_t)strlen(path), (uint32_t)size, offset};
    pthread_mutex_lock(&lock);
    syscall(SYS_write, trace_file, &event, sizeof event);
    syscall(SYS_write, trace_file, path, strlen(path));
    if (size)
        syscall(SYS_write, trace_file, data, size);
    pthread_mutex_unlock(&lock);
}

void start_trace(const char *path) { trace_file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600); }
void mark(long number) { put('m', "", number, 0, 0); }

/* What follows stands before the functions of the C library. */

static int path_of(int file, char *path)
{
    struct stat found;
    char link[40];
    ssize_t size;
    if (fstat(file, &found) || !S_ISREG(found.st_mode))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    size = readlink(link, path, 4095);
    path[size > 0 ? size : 0] = 0;
    return size > 0;
}

static int is_full(int file)
{
    char path[4096];
    if (!writes_left || !path_of(file, path) || (writes_left > 1 && --writes_left))
        return 0;
    errno = ENOSPC;
    return 1;
}

#define NEXT(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

static void wrote(int file, int64_t offset, const void *data, ssize_t size)
{
    char path[4096];
    if (trace_file >= 0 && size > 0 && path_of(file, path))
        put('w', path, offset, data, size);
}

ssize_t write(int file, const void *data, size_t size)
{
    ssize_t done;
    if (is_full(file))
        return -1;
    done = NEXT(ssize_t, "write", int, const void *, size_t)(file, data, size);
    if (trace_file >= 0 && done > 0)
        wrote(file, lseek(file, 0, SEEK_CUR) - done, data, done);
    return done;
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t offset)
{
    ssize_t done;
    if (is_full(file))
        return -1;
    done = NEXT(ssize_t, "pwrite64", int, const void *, size_t, off64_t)(file, data, size, offset);
    wrote(file, offset, data, done);
    return done;
}

ssize_t pwrite(int file, const void *data, size_t size, off_t offset) { return pwrite64(file, data, size, offset); }

int ftruncate64(int file, off64_t size)
{
    char path[4096];
    int failed = NEXT(int, "ftruncate64", int, off64_t)(file, size);
    if (trace_file >= 0 && !failed && path_of(file, path))
        put('t', path, size, 0, 0);
    return failed;
}

int ftruncate(int file, off_t size) { return ftruncate64(file, size); }

int open64(const char *path, int flags, ...)
{
    int mode = 0, file;
    if (flags & O_CREAT) {
        va_list rest;
        va_start(rest, flags);
        mode = va_arg(rest, int);
        va_end(rest);
    }
    file = NEXT(int, "open64", const char *, int, ...)(path, flags, mode);
    if (trace_file >= 0 && file >= 0 && flags & O_CREAT)
        put('c', path, 0, 0, 0);
    return file;
}

static int synced(int file, const char *name)
{
    char path[4096], block[1 << 16];
    ssize_t size;
    int failed;
    if (syncs_left && !--syncs_left) {
        errno = EIO;
        return -1;
    }
    failed = NEXT(int, name, int)(file);
    if (trace_file < 0 || failed)
        return failed;
    if (!path_of(file, path)) {
        put('s', "", 0, 0, 0);
        return 0;
    }
    /* numpy writes past these functions, so files that are synced once are read as a whole. */
    if (strstr(path, ".npy")) {
        int other = open(path, O_RDONLY);
        for (off_t at = 0; (size = pread(other, block, sizeof block, at)) > 0; at += size)
            put('w', path, at, block, size);
        close(other);
    }
    put('s', path, 0, 0, 0);
    return 0;
}

int fsync(int file) { return synced(file, "fsync"); }
int fdatasync(int file) { return synced(file, "fdatasync"); }

int rename(const char *from, const char *to)
{
    int failed = NEXT(int, "rename", const char *, const char *)(from, to);
    if (trace_file >= 0 && !failed)
        put('r', from, 0, to, strlen(to));
    return failed;
}

int unlink(const char *path)
{
    int failed = NEXT(int, "unlink", const char *)(path);
    if (trace_file >= 0 && !failed)
        put('u', path, 0, 0, 0);
    return failed;
}
