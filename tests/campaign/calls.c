/* Preloaded into the ranks of the campaign: system calls on files below CAMPAIGN_OUTPUT fail as CAMPAIGN_CALLS says. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { NONE, RENAME, FSYNC, WRITE, SHORT_WRITE, OPEN, UNLINK, TRUNCATE, CLOSE };

struct fault {
    long which, error, after, goes_on, hits; /* after: successful calls before the first that fails */
};
static volatile struct fault *fault;
static const char *output;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CAMPAIGN_CALLS");
    output = getenv("CAMPAIGN_OUTPUT");
    int file = path && output ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *mapped = file < 0 ? MAP_FAILED : mmap(0, sizeof(struct fault), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    fault = mapped == MAP_FAILED ? 0 : mapped;
}

static int fails(long which, const char *path) {
    if (!fault || fault->which != which || !path || strncmp(path, output, strlen(output))) return 0;
    long before = __atomic_fetch_sub(&fault->after, 1, __ATOMIC_SEQ_CST);
    if (before > 0 || (before < 0 && !fault->goes_on)) return 0;
    __atomic_fetch_add(&fault->hits, 1, __ATOMIC_SEQ_CST);
    errno = (int)fault->error;
    return 1;
}

static int fails_on(long which, int descriptor) {
    if (!fault || fault->which != which) return 0;
    char link[32], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return fails(which, path);
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

int rename(const char *from, const char *to) {
    REAL(rename);
    return fails(RENAME, to) ? -1 : real(from, to);
}

int fsync(int file) {
    REAL(fsync);
    return fails_on(FSYNC, file) ? -1 : real(file);
}

ssize_t write(int file, const void *data, size_t count) {
    REAL(write);
    if (fails_on(WRITE, file)) return -1;
    return real(file, data, count > 1 && fails_on(SHORT_WRITE, file) ? count / 2 : count);
}

int unlink(const char *path) {
    REAL(unlink);
    return fails(UNLINK, path) ? -1 : real(path);
}

int ftruncate64(int file, off64_t length) {
    REAL(ftruncate64);
    return fails_on(TRUNCATE, file) ? -1 : real(file, length);
}

int truncate64(const char *path, off64_t length) {
    REAL(truncate64);
    return fails(TRUNCATE, path) ? -1 : real(path, length);
}

int open64(const char *path, int flags, ...) {
    REAL(open64);
    va_list rest;
    va_start(rest, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0;
    va_end(rest);
    return fails(OPEN, path) ? -1 : real(path, flags, mode);
}

int close(int file) {
    REAL(close);
    if (!fails_on(CLOSE, file)) return real(file);
    int error = errno;
    real(file);
    errno = error;
    return -1;
}
