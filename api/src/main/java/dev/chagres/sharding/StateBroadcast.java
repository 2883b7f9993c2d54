package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.model.State;
import dev.chagres.nccl.Communicator;
import java.util.List;

/**
 * Gives the tensors and numbers of one rank's state to all ranks.
 *
 * <p>Threading: the device's thread.
 */
final class StateBroadcast {
    private StateBroadcast() {}

    /** Gives all ranks of {@code communicator} what {@code from} has, and waits for that. */
    static void run(State state, int from, Communicator communicator, Stream stream) {
        List<State.Number> numbers = List.copyOf(state.numbers().values());
        try (Scope scope = stream.device().openScope(stream)) {
            Tensor values = scope.tensor(DType.INT64, Math.max(1, numbers.size()));
            values.set(stream, values(numbers));
            Communicator.group(() -> {
                communicator.broadcast(values, values, from, stream);
                state.tensors().values().forEach(tensor -> communicator.broadcast(tensor, tensor, from, stream));
            });
            communicator.synchronize(stream);
            long[] given = values.toLongs(stream);
            for (int i = 0; i < numbers.size(); i++) {
                numbers.get(i).writer().accept(given[i]);
            }
        }
        state.loaded();
    }

    /** Returns the numbers; a 0 alone where there are none. */
    private static long[] values(List<State.Number> numbers) {
        long[] values = new long[Math.max(1, numbers.size())];
        for (int i = 0; i < numbers.size(); i++) {
            values[i] = numbers.get(i).reader().getAsLong();
        }
        return values;
    }
}
