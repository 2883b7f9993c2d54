package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.launch.Ranks;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.nccl.Reduction;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The examples of docs/collectives.md, docs/strategies.md, docs/failures.md and of the Javadoc. */
@Tag("L0")
@Tag("L2")
class CollectivesExampleTest {
    @Test
    void sumsOverTwoRanks() {
        DevicesNeeded.assume(2);
        // @start region="ranks"
        List<Float> sums = Ranks.local(2).run(rank -> {
            Stream stream = rank.device().stream();
            try (Scope scope = rank.device().openScope()) {
                float[] values = new float[1000];
                Arrays.fill(values, rank.index() + 1); // 1 on rank 0, 2 on rank 1
                Tensor x = scope.tensor(DType.FLOAT32, 1000);
                x.set(stream, values);
                rank.communicator().allReduce(x, x, Reduction.SUM, stream);
                return x.toFloats(stream)[0]; // waits for the stream
            }
        });
        System.out.println(sums); // [3.0, 3.0]
        // @end
        assertEquals(List.of(3f, 3f), sums);
    }

    @Test
    void gathersInPlace() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            try (Scope scope = rank.device().openScope()) {
                Stream stream = rank.device().stream();
                Communicator communicator = rank.communicator();
                // @start region="collectives"
                Tensor whole = scope.tensor(DType.BFLOAT16, 2 * 512);
                Tensor own = scope.view(whole, communicator.rank() * 512L, 512);
                own.set(stream, filled(512, communicator.rank()));
                communicator.allGather(own, whole, stream); // in place: own is part r of whole
                communicator.synchronize(stream); // no longer than the timeout
                // @end
                assertEquals(1, whole.toFloats(stream)[1023]);
                assertEquals(0, whole.toFloats(stream)[511]);
            }
        });
    }

    @Test
    void exchangesInARing() {
        DevicesNeeded.assume(3);
        List<Float> received = Ranks.local(3).run(rank -> {
            Stream stream = rank.device().stream();
            try (Scope scope = rank.device().openScope()) {
                Tensor own = scope.tensor(DType.FLOAT32, 1000);
                own.set(stream, filled(1000, rank.index()));
                // @start region="ring"
                Communicator communicator = rank.communicator();
                int ranks = communicator.ranks();
                int next = (communicator.rank() + 1) % ranks;
                int before = (communicator.rank() + ranks - 1) % ranks;
                Tensor other = scope.like(own);
                Communicator.group(() -> {
                    communicator.send(own, next, stream);
                    communicator.receive(other, before, stream);
                });
                float first = other.toFloats(stream)[0]; // after the group, whose end enqueues both
                // @end
                return first;
            }
        });
        assertEquals(List.of(2f, 0f, 1f), received);
    }

    /** Why the page says that both calls must be in one group. */
    @Test
    void aRingWithoutAGroupWaitsUntilTheTimeout() {
        DevicesNeeded.assume(3);
        Ranks ranks = Ranks.local(3).withConfig(CommunicatorConfig.standard().withTimeout(Duration.ofSeconds(1)));
        RankFailedException failed = assertThrows(
                RankFailedException.class,
                () -> ranks.each(rank -> {
                    try (Scope scope = rank.device().openScope()) {
                        Tensor own = scope.tensor(DType.FLOAT32, 1000);
                        own.zero(rank.device().stream());
                        rank.communicator().send(own, (rank.index() + 1) % 3, rank.device().stream());
                    }
                }));
        assertTrue(failed.getMessage().contains("send"), failed.getMessage());
    }

    @Test
    void arrangesRanks() {
        DevicesNeeded.assume(4);
        Ranks.local(4).each(rank -> {
            // @start region="mesh"
            MeshShape shape = MeshShape.ofOne().with(MeshDimension.SHARD, 2).with(MeshDimension.TENSOR, 2);
            try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
                Communicator tensor = mesh.along(MeshDimension.TENSOR); // ranks 0 and 1; ranks 2 and 3
                Communicator shard = mesh.along(MeshDimension.SHARD); // ranks 0 and 2; ranks 1 and 3
                // @end
                assertEquals(rank.index() % 2, tensor.rank());
                assertEquals(rank.index() / 2, shard.rank());
            }
        });
    }

    private static float[] filled(int count, float value) {
        float[] values = new float[count];
        Arrays.fill(values, value);
        return values;
    }
}
