/* clients - threads of one program that use files at once, as the clients of a bench row do.
 *
 *     clients create DIRECTORY CLIENTS EACH     each makes EACH files of 4 KiB and syncs every one; prints how many were made
 *     clients write FILE CLIENTS SECONDS        writes 4 KiB at random places, each on disk before the next (O_DIRECT | O_DSYNC)
 *     clients read FILE CLIENTS SECONDS         reads 4 KiB at random places (O_DIRECT)
 *
 * Not a script: threads of an interpreter wait for each other's hold of it, 5 ms at a time, and the row would show that.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK_BYTES = 4096, CLIENTS_MAX = 64 };

static const char *job, *path;
static double amount; /* files of each client, or seconds */
static uint64_t blocks; /* of the file */
static long done[CLIENTS_MAX];

static void need(int holds, const char *what)
{
    if (!holds) {
        perror(what);
        exit(1);
    }
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* Marsaglia's xorshift: the same places in each run. */
static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void create(long client, const char *data)
{
    char name[4096];
    for (; done[client] < (long)amount; done[client]++) {
        snprintf(name, sizeof name, "%s/%ld-%ld", path, client, done[client]);
        /* Not O_EXCL: an NFSv3 client follows that with a SETATTR, which the peer acknowledges from memory. */
        int file = open(name, O_CREAT | O_WRONLY, 0666);
        need(file >= 0, "open");
        need(write(file, data, BLOCK_BYTES) == BLOCK_BYTES, "write");
        need(fsync(file) == 0, "fsync");
        need(close(file) == 0, "close");
    }
}

static void at_random(long client, char *data, int is_write)
{
    uint64_t state = client + 1;
    double end = now() + amount;
    int file = open(path, O_DIRECT | (is_write ? O_WRONLY | O_DSYNC : O_RDONLY));
    need(file >= 0, "open");
    for (; now() < end; done[client]++) {
        off_t place = next(&state) % blocks * BLOCK_BYTES;
        need((is_write ? pwrite(file, data, BLOCK_BYTES, place) : pread(file, data, BLOCK_BYTES, place)) == BLOCK_BYTES, "4 KiB");
    }
    need(close(file) == 0, "close");
}

static void *work(void *number)
{
    long client = (long)number;
    uint64_t state = 0x9e3779b97f4a7c15 + client;
    char *data = aligned_alloc(BLOCK_BYTES, BLOCK_BYTES);
    need(data != NULL, "memory");
    for (int at = 0; at < BLOCK_BYTES; at += 8) /* not compressible */
        memcpy(data + at, &(uint64_t){next(&state)}, 8);
    if (strcmp(job, "create") == 0)
        create(client, data);
    else
        at_random(client, data, strcmp(job, "write") == 0);
    free(data);
    return NULL;
}

int main(int count, char **arguments)
{
    if (count != 5 || atol(arguments[3]) < 1 || atol(arguments[3]) > CLIENTS_MAX) {
        fprintf(stderr, "usage: clients create|write|read PATH CLIENTS AMOUNT\n");
        return 2;
    }
    job = arguments[1], path = arguments[2], amount = atof(arguments[4]);
    long clients = atol(arguments[3]), sum = 0;
    if (strcmp(job, "create") != 0) {
        struct stat file;
        need(stat(path, &file) == 0, path);
        blocks = file.st_size / BLOCK_BYTES;
        need(blocks > 0, "an empty file");
    }
    pthread_t threads[CLIENTS_MAX];
    for (long client = 0; client < clients; client++)
        need(pthread_create(&threads[client], NULL, work, (void *)client) == 0, "thread");
    for (long client = 0; client < clients; client++) {
        need(pthread_join(threads[client], NULL) == 0, "join");
        sum += done[client];
    }
    printf("%ld\n", sum);
    return 0;
}
