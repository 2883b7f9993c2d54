package dev.chagres;

import java.util.EnumMap;
import java.util.Locale;
import java.util.Map;

/**
 * Which parts of a program hold how many bytes of a device.
 *
 * <p>Threading: immutable.
 *
 * @param bytes of each holder that has some
 */
public record MemoryUse(Map<Holder, Long> bytes) {
    /** What memory is for. */
    public enum Holder {
        /** What no other line names: what programs open by {@link Device#openScope()}, tables, counters. */
        OTHER,
        /** Kernels while they run: 32 MiB of a stream for matrix products, and what norms and attention ask for. */
        WORKSPACES,
        /** Weights in the model's type. */
        WEIGHTS,
        /** Gradients. */
        GRADIENTS,
        /** Moments of optimizers, and masters of weights. */
        OPTIMIZER,
        /** What passes keep for backward, and results. */
        ACTIVATIONS,
        /** What layers need until their call returns. */
        TEMPORARY,
        /** What recomputed layers keep until their backward returns. */
        RECOMPUTATION,
        /** Weights in eight bits, and scales. */
        QUANTIZED,
        /** What collectives gather and sum in. */
        COLLECTIVES,
        /** Batches on their way to the device, and what is read back. */
        BATCHES;

        @Override
        public String toString() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    private static final double MIB = 1 << 20;

    /** Takes what each holder has. */
    public MemoryUse {
        bytes = Map.copyOf(Given.given("bytes", bytes));
    }

    static MemoryUse of(long[] byHolder) {
        Map<Holder, Long> bytes = new EnumMap<>(Holder.class);
        for (Holder holder : Holder.values()) {
            if (byHolder[holder.ordinal()] != 0) {
                bytes.put(holder, byHolder[holder.ordinal()]);
            }
        }
        return new MemoryUse(bytes);
    }

    /** Returns what an error says of memory that is full: who holds how much, and what would make the largest holder smaller. */
    String explanation() {
        return bytes.entrySet().stream()
                .max(Map.Entry.<Holder, Long>comparingByValue())
                .map(most -> ": " + this + "; " + help(most.getKey()))
                .orElse("");
    }

    private static String help(Holder most) {
        return switch (most) {
            case ACTIVATIONS, TEMPORARY, RECOMPUTATION ->
                "smaller micro-batches, or layers that are recomputed, take less";
            case OPTIMIZER ->
                "an optimizer with states of eight bits, state in the host's memory (AdamW.Config.offloaded), or state that"
                        + " ranks shard (ZeroStage.ONE) takes less";
            case GRADIENTS ->
                "gradients of products in 16 bits (ModelPlan.productGradients), or that ranks shard (ZeroStage.TWO), take less";
            case WEIGHTS, QUANTIZED -> "weights that ranks shard (ZeroStage.THREE) or split (TensorParallel) take less";
            case COLLECTIVES -> "smaller groups of parameters take less while they are gathered";
            case BATCHES -> "smaller steps take less";
            case WORKSPACES, OTHER -> "close scopes and streams that are not needed";
        };
    }

    /** Returns the bytes of one holder. */
    public long of(Holder holder) {
        return bytes.getOrDefault(Given.given("holder", holder), 0L);
    }

    /** Returns the bytes of all. */
    public long total() {
        return bytes.values().stream().mapToLong(Long::longValue).sum();
    }

    /** Returns {@code weights 12.0 MiB, gradients 24.0 MiB}, the most first. */
    @Override
    public String toString() {
        return bytes.entrySet().stream()
                .sorted(Map.Entry.<Holder, Long>comparingByValue().reversed().thenComparing(Map.Entry::getKey))
                .map(one -> String.format(Locale.ROOT, "%s %,.1f MiB", one.getKey(), one.getValue() / MIB))
                .reduce((a, b) -> a + ", " + b)
                .orElse("nothing");
    }
}
