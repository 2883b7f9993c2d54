package dev.chagres.nccl;

import dev.chagres.internal.Checks;
import java.time.Duration;

/**
 * The configuration of a communicator, built by name: {@code CommunicatorConfig.standard().withName("gathers").withMaxCtas(8)}.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code ncclConfig_t} of {@code nccl.h}.
 *
 * @param name used in errors and in NCCL's own messages
 * @param timeout how long a rank waits for the others, without time in which its whole process was stopped
 * @param minCtas fewest thread blocks of a collective's kernel; 0 leaves it to NCCL
 * @param maxCtas most thread blocks of a collective's kernel; 0 leaves it to NCCL
 * @param ctaPolicy how NCCL chooses a number between these
 * @param checks what is checked before a call
 * @param callMode how NCCL runs its calls on the host
 */
public record CommunicatorConfig(
        String name,
        Duration timeout,
        int minCtas,
        int maxCtas,
        CtaPolicy ctaPolicy,
        CollectiveChecks checks,
        CallMode callMode) {
    /** Five minutes: loading a large model on one rank takes no longer. */
    private static final Duration STANDARD_TIMEOUT = Duration.ofMinutes(5);

    /**
     * Checks that the numbers fit together.
     *
     * @throws IllegalArgumentException when the timeout is not positive or longer than a day, a number of thread blocks is
     *     negative, or the fewest are more than the most
     */
    public CommunicatorConfig {
        Checks.given("name", name, "ctaPolicy", ctaPolicy, "checks", checks, "callMode", callMode);
        // Compared first, since the milliseconds of a duration may overflow a long.
        if (Checks.given("timeout", timeout).compareTo(Duration.ofMillis(1)) < 0
                || timeout.compareTo(Duration.ofDays(1)) > 0) {
            throw new IllegalArgumentException("timeout: expected 1 ms to 1 day, got " + timeout);
        }
        if (minCtas < 0) {
            throw new IllegalArgumentException("minCtas: expected at least 1, or 0 for NCCL's choice, got " + minCtas);
        }
        if (maxCtas < 0 || (maxCtas > 0 && maxCtas < minCtas)) {
            throw new IllegalArgumentException(
                    "maxCtas: expected at least " + Math.max(1, minCtas) + ", or 0 for NCCL's choice, got " + maxCtas);
        }
    }

    /**
     * Returns the default: named {@code world}, five minutes, NCCL's choice of thread blocks, checks as {@code
     * -Dchagres.collective.checks=arguments|full} says, calls as {@code -Dchagres.collective.calls=blocking|non-blocking} says.
     *
     * @throws IllegalArgumentException when one of these properties has another value
     */
    public static CommunicatorConfig standard() {
        return new CommunicatorConfig(
                "world",
                STANDARD_TIMEOUT,
                0,
                0,
                CtaPolicy.DEFAULT,
                CollectiveChecks.fromProperty(),
                CallMode.fromProperty());
    }

    /** Returns the same with another name. */
    public CommunicatorConfig withName(String newName) {
        return new CommunicatorConfig(newName, timeout, minCtas, maxCtas, ctaPolicy, checks, callMode);
    }

    /** Returns the same with another timeout. */
    public CommunicatorConfig withTimeout(Duration newTimeout) {
        return new CommunicatorConfig(name, newTimeout, minCtas, maxCtas, ctaPolicy, checks, callMode);
    }

    /** Returns the same with another minimum of thread blocks. */
    public CommunicatorConfig withMinCtas(int newMinCtas) {
        return new CommunicatorConfig(name, timeout, newMinCtas, maxCtas, ctaPolicy, checks, callMode);
    }

    /** Returns the same with another maximum of thread blocks. */
    public CommunicatorConfig withMaxCtas(int newMaxCtas) {
        return new CommunicatorConfig(name, timeout, minCtas, newMaxCtas, ctaPolicy, checks, callMode);
    }

    /** Returns the same with another policy. */
    public CommunicatorConfig withCtaPolicy(CtaPolicy newCtaPolicy) {
        return new CommunicatorConfig(name, timeout, minCtas, maxCtas, newCtaPolicy, checks, callMode);
    }

    /** Returns the same with other checks. */
    public CommunicatorConfig withChecks(CollectiveChecks newChecks) {
        return new CommunicatorConfig(name, timeout, minCtas, maxCtas, ctaPolicy, newChecks, callMode);
    }

    /** Returns the same with another mode of calls. */
    public CommunicatorConfig withCallMode(CallMode newCallMode) {
        return new CommunicatorConfig(name, timeout, minCtas, maxCtas, ctaPolicy, checks, newCallMode);
    }
}
