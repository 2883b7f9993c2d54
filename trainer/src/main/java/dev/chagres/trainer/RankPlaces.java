package dev.chagres.trainer;

/** Where ranks run. */
enum RankPlaces {
    /** Threads of this program. */
    THREADS,
    /** Processes, of which this one is one. */
    PROCESSES
}
