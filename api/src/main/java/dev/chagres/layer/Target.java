package dev.chagres.layer;

import dev.chagres.QuantizedTensor;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * What the producer of an operand, such as a norm or an activation, writes for the product that reads it.
 *
 * <p>{@code begin} of {@link QuantizedInput} or {@link QuantizedGradient} hands it out, as the recipe says and the producer's kernel can. The
 * producer fills it, and {@code finish} makes what the product still lacks. Who hands targets out has one of each form, so that a step makes
 * no garbage; a target is valid until the next {@code begin}.
 *
 * <p>Threading: the device's thread.
 */
abstract sealed class Target {
    /** What a producer's kernel can do beside writing its result in the model's type. */
    enum Producer {
        /** Find the amax from which a scale follows. */
        FINDS_AMAX,
        /** Cast it by a scale that is known before. */
        CASTS,
        /** Either. */
        CASTS_OR_FINDS_AMAX
    }

    private @Nullable Tensor tensor;
    private @Nullable QuantizedTensor copies;

    /** The tensor in the model's type. */
    static final class Plain extends Target {}

    /** Copies in eight bits, whose scale is known before; and the tensor, if somebody reads that, too. */
    static final class Quantized extends Target {}

    /** The tensor, and its largest magnitude, from which the scale of its cast follows. */
    static final class PlainAndAmax extends Target {}

    /** Sets what is to be written: {@code newCopies} have data and a scale, or only an amax, 0 so far, which the producer raises. */
    final Target set(@Nullable Tensor newTensor, @Nullable QuantizedTensor newCopies) {
        tensor = newTensor;
        copies = newCopies;
        return this;
    }

    /** Has the tensor written in any case. */
    final Target with(Tensor newTensor) {
        return set(newTensor, copies);
    }

    /** Returns the tensor in the model's type; null where nobody reads it. */
    final @Nullable Tensor tensorOrNull() {
        return tensor;
    }

    /** Returns the tensor in the model's type, of a form that has it. */
    final Tensor tensor() {
        return Checks.given("tensor", tensor);
    }

    /** Returns the copies, without data where only their amax is computed; null in {@link Plain}. */
    final @Nullable QuantizedTensor copiesOrNull() {
        return copies;
    }

    /** Returns the copies, of a form that has them. */
    final QuantizedTensor copies() {
        return Checks.given("copies", copies);
    }

    /** Returns the amax that the producer raises for the cast; null where the cast has or finds its own. */
    final @Nullable Tensor amax() {
        return this instanceof PlainAndAmax ? copies().amax() : null;
    }
}
