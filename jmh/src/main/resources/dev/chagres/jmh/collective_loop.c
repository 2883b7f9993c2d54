/* What CollectiveBenchmark compares with: the calls of a C program. */
#include <stddef.h>

typedef int all_reduce(const void *send, void *receive, size_t count, int type, int operation, void *communicator, void *stream);

/* Calls ncclAllReduce a number of times, and returns the first status that is not 0. */
int collective_loop(all_reduce *call, const void *send, void *receive, size_t count, int type, int operation, void *communicator,
                    void *stream, int times) {
    for (int i = 0; i < times; i++) {
        int status = call(send, receive, count, type, operation, communicator, stream);
        if (status != 0)
            return status;
    }
    return 0;
}
