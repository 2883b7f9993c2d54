package dev.chagres.jmh;

/** What the ranks of a benchmark are. */
public enum RankKind {
    /** Threads of the benchmark's process. */
    THREADS,
    /** Processes that the benchmark starts. */
    PROCESSES
}
