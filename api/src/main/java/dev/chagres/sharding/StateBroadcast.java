package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.nccl.Communicator;
import dev.chagres.parameter.State;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

/**
 * Gives the state of one rank to others, so that a rank which fails meanwhile spoils no state of those that receive nothing.
 *
 * <p>Threading: the device's thread.
 */
record StateBroadcast(Communicator communicator, int from, Stream stream) {
    /**
     * Gives the ranks {@code behind} what {@code from} has of {@code state}, without {@code shared}, which {@link #toAll} gives them, and
     * waits for that. It is written in place: if this fails, the state of a rank that is behind belongs to no step. Other ranks only read.
     */
    void toThoseBehind(State state, List<State> shared, List<Integer> behind) {
        boolean receives = behind.contains(communicator.rank());
        if (!receives && (communicator.rank() != from || behind.isEmpty())) {
            return;
        }
        List<Tensor> tensors = without(state, shared);
        try (Scope scope = stream.device().openScope(stream)) {
            Tensor numbers = numbers(state, scope);
            tensors.add(numbers);
            Communicator.group(() -> {
                for (Tensor tensor : tensors) {
                    if (receives) {
                        communicator.receive(tensor, from, stream);
                    } else {
                        behind.forEach(rank -> communicator.send(tensor, rank, stream));
                    }
                }
            });
            communicator.synchronize(stream);
            if (receives) {
                write(state, numbers);
            }
        }
        if (receives) {
            state.loaded();
        }
    }

    /** Gives all ranks what {@code from} has, and waits for that. It is received beside the state, which is written when all has come. */
    void toAll(State state) {
        List<Tensor> tensors = List.copyOf(state.tensors().values());
        try (Scope scope = stream.device().openScope(stream)) {
            Tensor numbers = numbers(state, scope);
            List<Tensor> received = tensors.stream()
                    .map(tensor -> scope.tensor(tensor.dtype(), tensor.count()))
                    .toList();
            Communicator.group(() -> {
                communicator.broadcast(numbers, numbers, from, stream);
                for (int i = 0; i < tensors.size(); i++) {
                    Tensor own = communicator.rank() == from ? tensors.get(i) : null;
                    communicator.broadcast(own, received.get(i), from, stream);
                }
            });
            communicator.synchronize(stream);
            for (int i = 0; i < tensors.size(); i++) {
                tensors.get(i).copyFrom(stream, received.get(i));
            }
            write(state, numbers);
        }
        state.loaded();
    }

    private static List<Tensor> without(State state, List<State> shared) {
        Set<Long> others = new HashSet<>();
        shared.forEach(each -> each.tensors().values().forEach(tensor -> others.add(tensor.address())));
        List<Tensor> own = new ArrayList<>(state.tensors().values());
        own.removeIf(tensor -> others.contains(tensor.address()));
        return own;
    }

    /** Returns the numbers on the device; a 0 alone where there are none. */
    private Tensor numbers(State state, Scope scope) {
        List<State.Number> numbers = List.copyOf(state.numbers().values());
        long[] values = new long[Math.max(1, numbers.size())];
        for (int i = 0; i < numbers.size(); i++) {
            values[i] = numbers.get(i).reader().getAsLong();
        }
        Tensor given = scope.tensor(DType.INT64, values.length);
        given.set(stream, values);
        return given;
    }

    private void write(State state, Tensor numbers) {
        List<State.Number> all = List.copyOf(state.numbers().values());
        long[] given = numbers.toLongs(stream);
        for (int i = 0; i < all.size(); i++) {
            all.get(i).writer().accept(given[i]);
        }
    }
}
