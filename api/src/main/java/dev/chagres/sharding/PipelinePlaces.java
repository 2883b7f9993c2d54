package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * Memory for what travels between stages and lies in no pass: what a call is given by another rank, and the results of this rank's calls
 * until they are sent.
 *
 * <p>Threading: the device's thread.
 */
final class PipelinePlaces implements AutoCloseable {
    private final DType dtype;
    private final long width;
    private final Scope room;
    private @Nullable Tensor receiving;
    /** As much of that as was received. */
    private @Nullable Tensor received;
    /** By place. */
    private @Nullable Tensor[] memory = new Tensor[0];
    /** As much of those as the results are. */
    private @Nullable Tensor[] results = new Tensor[0];

    PipelinePlaces(DType dtype, long width, Stream stream) {
        this.dtype = dtype;
        this.width = width;
        room = stream.device().openScope(stream);
    }

    /** Takes memory for a run with so many places, whose longest micro-batch has {@code tokens}. What lay here is gone. */
    void take(int places, long tokens) {
        room.restart();
        if (memory.length < places) {
            memory = new Tensor[places];
            results = new Tensor[places];
        }
        receiving = tensor(room, tokens);
        for (int i = 0; i < places; i++) {
            memory[i] = tensor(room, tokens);
        }
    }

    /** Returns memory of {@code scope} for what travels of a micro-batch. */
    Tensor tensor(Scope scope, long tokens) {
        return scope.tensor(dtype, tokens, width);
    }

    /** Makes room for what the next call is given. */
    void receive(long tokens) {
        received = room.view(Checks.given("receiving", receiving), 0, tokens, width);
    }

    /** Returns what the next call is given, after {@link #receive}. */
    Tensor received() {
        return Checks.given("received", received);
    }

    /** Returns where a call is to write its result. */
    Tensor begin(int place, long tokens) {
        Tensor result = room.view(Checks.given("memory", memory[place]), 0, tokens, width);
        results[place] = result;
        return result;
    }

    /** Returns the last result of a place. */
    Tensor result(int place) {
        return Checks.given("result", results[place]);
    }

    @Override
    public void close() {
        room.close();
    }
}
