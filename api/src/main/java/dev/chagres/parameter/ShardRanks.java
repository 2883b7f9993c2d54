package dev.chagres.parameter;

import dev.chagres.internal.Checks;
import dev.chagres.nccl.Communicator;
import dev.chagres.parameter.ParameterShard.Part;
import java.util.List;

/**
 * For optimizers: ranks that shard what they update.
 *
 * <p>Threading: the device's thread.
 *
 * @param ranks their communicator
 * @param parts what each of them updates of every group
 */
public record ShardRanks(Communicator ranks, List<Part> parts) {
    /**
     * Checks that each rank has a part.
     *
     * @throws IllegalArgumentException when there are more or fewer
     */
    public ShardRanks {
        parts = Checks.givenAll("parts", parts);
        if (parts.size() != Checks.given("ranks", ranks).ranks()) {
            throw new IllegalArgumentException(
                    "parts: expected one of each of " + ranks.ranks() + " ranks, got " + parts.size());
        }
    }
}
