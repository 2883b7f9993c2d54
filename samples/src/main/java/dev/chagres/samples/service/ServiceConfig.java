package dev.chagres.samples.service;

import java.time.Duration;

/**
 * Limits of an {@link EmbeddingService}.
 *
 * @param port 0 for any that is free
 * @param bodyBytes the longest request
 * @param batchTokens that are computed at a time; a longer request is computed alone
 * @param waiting how many requests wait for the device at most
 * @param patience how long a request waits
 * @param ending how long requests under way may take when the service ends
 */
public record ServiceConfig(int port, int bodyBytes, int batchTokens, int waiting, Duration patience, Duration ending) {
    /** Checks the limits. */
    public ServiceConfig {
        if (port < 0 || port > 65_535) {
            throw new IllegalArgumentException("port: expected 0 to 65535, got " + port);
        }
        if (bodyBytes < 1 || batchTokens < 1 || waiting < 1) {
            throw new IllegalArgumentException("bodyBytes, batchTokens, waiting: expected at least 1, got " + bodyBytes
                    + ", " + batchTokens + ", " + waiting);
        }
        if (!patience.isPositive() || ending.isNegative()) {
            throw new IllegalArgumentException(
                    "patience, ending: expected positive durations, got " + patience + ", " + ending);
        }
    }

    /** Limits for a small service. */
    public static ServiceConfig on(int port) {
        return new ServiceConfig(port, 1 << 20, 16_384, 256, Duration.ofSeconds(30), Duration.ofSeconds(30));
    }

    /** Returns the same with other limits of requests that wait. */
    public ServiceConfig withWaiting(int newWaiting, Duration newPatience) {
        return new ServiceConfig(port, bodyBytes, batchTokens, newWaiting, newPatience, ending);
    }

    /** Returns the same with a longest request of {@code newBodyBytes}. */
    public ServiceConfig withBodyBytes(int newBodyBytes) {
        return new ServiceConfig(port, newBodyBytes, batchTokens, waiting, patience, ending);
    }
}
