package dev.chagres.nccl;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import java.util.ArrayList;
import java.util.List;
import java.util.function.DoubleBinaryOperator;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Every collective against loops in Java: any number of ranks, all types, odd and zero counts, in place or not. */
@Tag("L0")
@Tag("L2")
class CollectivesConformance {
    /** The ranks of one host; {@link ManyRanksTest} has more. */
    private static final int MOST_RANKS = 8;
    /** Fewer elements of more ranks, whose sums in Java take long. */
    private static final int[] COUNTS = {0, 1, 7, Device.count() > MOST_RANKS ? 521 : 4099};
    /** Numbers that a byte holds. */
    private static final int BYTES = 256;

    static IntStream rankCounts() {
        return IntStream.rangeClosed(1, Math.min(MOST_RANKS, Device.count()));
    }

    /** One rank with a type: what the checks need. */
    private record Case(Rank rank, Scope scope, DType dtype, int count) {
        Stream stream() {
            return rank.device().stream();
        }

        Tensor filled(int seed, int elements) {
            return filled(seed, rank.index(), elements);
        }

        Tensor filled(int seed, int of, int elements) {
            Tensor tensor = scope.tensor(dtype, elements);
            RankValues.set(tensor, stream(), RankValues.row(seed, of, elements));
            return tensor;
        }

        /** This rank's values for a reduction. */
        Tensor filledFor(Reduction reduction, int seed, int elements) {
            Tensor tensor = scope.tensor(dtype, elements);
            double[] values = new double[elements];
            for (int i = 0; i < elements; i++) {
                values[i] = value(reduction, seed, rank.index(), i);
            }
            RankValues.set(tensor, stream(), values);
            return tensor;
        }

        /**
         * Such that each type holds every result, and every partial one, exactly: of each element eight ranks at most have what counts in
         * a sum in FP8 or a product, other ranks 0 or 1.
         */
        private double value(Reduction reduction, int seed, int of, int i) {
            double value = RankValues.value(seed, of, i);
            boolean counts = (of + i) % rank.count() < MOST_RANKS;
            if (reduction == Reduction.PRODUCT) {
                return counts ? 1 + value % 2 : 1;
            }
            boolean sums = reduction == Reduction.SUM || reduction == Reduction.AVERAGE;
            return sums && dtype.isFloat8() ? (counts ? value % 2 : 0) : value;
        }

        Tensor empty(int elements) {
            Tensor tensor = scope.tensor(dtype, elements);
            tensor.zero(stream());
            return tensor;
        }

        /** The reduction of element {@code i} over ranks. */
        double reduced(int seed, int i, Reduction reduction) {
            int ranks = rank.count();
            DoubleBinaryOperator operator = operator(reduction);
            double result = value(reduction, seed, 0, i);
            for (int of = 1; of < ranks; of++) {
                result = operator.applyAsDouble(result, value(reduction, seed, of, i));
            }
            if (dtype == DType.BYTE) {
                result %= BYTES; // integers wrap
            } else if (dtype == DType.INT8) {
                result = Math.floorMod((long) result + BYTES / 2, BYTES) - BYTES / 2; // with a sign
            }
            if (reduction == Reduction.AVERAGE) {
                boolean isFraction = dtype.isFloat() || dtype.isFloat8() || dtype == DType.FLOAT64;
                result = isFraction ? result / ranks : Math.floor(result / ranks);
            }
            return RankValues.rounded(dtype, result);
        }

        private static DoubleBinaryOperator operator(Reduction reduction) {
            if (reduction == Reduction.PRODUCT) {
                return (a, b) -> a * b;
            }
            if (reduction == Reduction.MAX) {
                return Math::max;
            }
            return reduction == Reduction.MIN ? Math::min : Double::sum;
        }

        double[] reducedAll(int seed, int begin, int elements, Reduction reduction) {
            double[] all = new double[elements];
            for (int i = 0; i < elements; i++) {
                all[i] = reduced(seed, begin + i, reduction);
            }
            return all;
        }

        void assertHolds(String what, double[] expected, Tensor actual) {
            double tolerance = switch (dtype) {
                case FLOAT16, FLOAT32 -> 1e-3;
                case BFLOAT16 -> 1e-2;
                case FLOAT64 -> 1e-14;
                default -> 0;
            };
            String where = what + " of " + count + " " + dtype + " on rank " + rank.index() + " of " + rank.count();
            double[] values = RankValues.get(actual, stream());
            assertEquals(expected.length, values.length, where);
            for (int i = 0; i < expected.length; i++) {
                assertEquals(expected[i], values[i], tolerance * Math.abs(expected[i]), where + ", element " + i);
            }
        }

        double[] rows(int seed, int begin, int elements) {
            double[] all = new double[rank.count() * elements];
            for (int of = 0; of < rank.count(); of++) {
                System.arraycopy(RankValues.row(seed, of, begin + elements), begin, all, of * elements, elements);
            }
            return all;
        }
    }

    private interface Check {
        void run(Case c);
    }

    private static void onEach(int ranks, Check check) {
        DevicesNeeded.assume(ranks);
        Ranks.local(ranks).each(rank -> {
            try (Scope scope = rank.device().openScope()) {
                for (DType dtype : RankValues.TYPES) {
                    for (int count : COUNTS) {
                        scope.restart();
                        check.run(new Case(rank, scope, dtype, count));
                    }
                }
            }
        });
    }

    @ParameterizedTest
    @MethodSource("rankCounts")
    void allReduce(int ranks) {
        onEach(ranks, c -> {
            for (Reduction reduction : reductions(c.dtype, ranks)) {
                Tensor send = c.filledFor(reduction, 1, c.count);
                Tensor receive = c.empty(c.count);
                double[] expected = c.reducedAll(1, 0, c.count, reduction);
                Communicator communicator = c.rank.communicator();
                communicator.allReduce(send, receive, reduction, c.stream());
                c.assertHolds("allReduce " + reduction, expected, receive);
                communicator.allReduce(send, send, reduction, c.stream());
                c.assertHolds("allReduce in place " + reduction, expected, send);
            }
        });
    }

    /** All, but for an average in FP8 over a number of ranks that is no power of two: a third is rounded. */
    private static List<Reduction> reductions(DType dtype, int ranks) {
        List<Reduction> all = new ArrayList<>(List.of(Reduction.MAX, Reduction.MIN, Reduction.SUM, Reduction.PRODUCT));
        if (!dtype.isFloat8() || Integer.bitCount(ranks) == 1) {
            all.add(Reduction.AVERAGE);
        }
        return all;
    }

    @ParameterizedTest
    @MethodSource("rankCounts")
    void allGather(int ranks) {
        onEach(ranks, c -> {
            Tensor all = c.empty(ranks * c.count);
            c.rank.communicator().allGather(c.filled(2, c.count), all, c.stream());
            c.assertHolds("allGather", c.rows(2, 0, c.count), all);
            Tensor place = c.scope.view(all, (long) c.rank.index() * c.count, c.count);
            RankValues.set(place, c.stream(), RankValues.row(3, c.rank.index(), c.count));
            c.rank.communicator().allGather(place, all, c.stream());
            c.assertHolds("allGather in place", c.rows(3, 0, c.count), all);
        });
    }

    @ParameterizedTest
    @MethodSource("rankCounts")
    void reduceScatter(int ranks) {
        onEach(ranks, c -> {
            for (Reduction reduction : reductions(c.dtype, ranks)) {
                Tensor send = c.filledFor(reduction, 4, ranks * c.count);
                Tensor receive = c.empty(c.count);
                double[] expected = c.reducedAll(4, c.rank.index() * c.count, c.count, reduction);
                c.rank.communicator().reduceScatter(send, receive, reduction, c.stream());
                c.assertHolds("reduceScatter " + reduction, expected, receive);
                Tensor place = c.scope.view(send, (long) c.rank.index() * c.count, c.count);
                c.rank.communicator().reduceScatter(send, place, reduction, c.stream());
                c.assertHolds("reduceScatter in place " + reduction, expected, place);
            }
        });
    }

    @ParameterizedTest
    @MethodSource("rankCounts")
    void fromAndToOneRank(int ranks) {
        onEach(ranks, c -> {
            int root = ranks / 2;
            boolean isRoot = c.rank.index() == root;
            Communicator communicator = c.rank.communicator();
            Tensor one = c.empty(c.count);
            Tensor all = c.empty(ranks * c.count);

            communicator.broadcast(isRoot ? c.filled(5, c.count) : null, one, root, c.stream());
            c.assertHolds("broadcast", RankValues.row(5, root, c.count), one);
            Tensor same = c.filled(6, c.count);
            communicator.broadcast(isRoot ? same : null, same, root, c.stream());
            c.assertHolds("broadcast in place", RankValues.row(6, root, c.count), same);

            Tensor send = c.filled(7, c.count);
            communicator.gather(send, isRoot ? all : null, root, c.stream());
            if (isRoot) {
                c.assertHolds("gather", c.rows(7, 0, c.count), all);
                Tensor place = c.scope.view(all, (long) root * c.count, c.count);
                communicator.gather(place, all, root, c.stream());
                c.assertHolds("gather in place", c.rows(7, 0, c.count), all);
            } else {
                communicator.gather(send, null, root, c.stream());
            }

            Tensor parts = isRoot ? c.filled(8, ranks * c.count) : null;
            communicator.scatter(parts, one, root, c.stream());
            double[] expected = new double[c.count];
            System.arraycopy(RankValues.row(8, root, ranks * c.count), c.rank.index() * c.count, expected, 0, c.count);
            c.assertHolds("scatter", expected, one);
            Tensor place = parts == null ? one : c.scope.view(parts, (long) root * c.count, c.count);
            communicator.scatter(parts, place, root, c.stream());
            c.assertHolds("scatter in place", expected, place);
        });
    }

    @ParameterizedTest
    @MethodSource("rankCounts")
    void reduceToOneRank(int ranks) {
        onEach(ranks, c -> {
            int root = ranks - 1;
            boolean isRoot = c.rank.index() == root;
            for (Reduction reduction : reductions(c.dtype, ranks)) {
                Tensor send = c.filledFor(reduction, 12, c.count);
                Tensor receive = isRoot ? c.empty(c.count) : null;
                c.rank.communicator().reduce(send, receive, reduction, root, c.stream());
                c.rank.communicator().reduce(send, isRoot ? send : null, reduction, root, c.stream());
                if (receive != null) {
                    double[] expected = c.reducedAll(12, 0, c.count, reduction);
                    c.assertHolds("reduce " + reduction, expected, receive);
                    c.assertHolds("reduce in place " + reduction, expected, send);
                }
            }
        });
    }

    @ParameterizedTest
    @MethodSource("rankCounts")
    void allToAll(int ranks) {
        onEach(ranks, c -> {
            Tensor receive = c.empty(ranks * c.count);
            c.rank.communicator().allToAll(c.filled(9, ranks * c.count), receive, c.stream());
            c.assertHolds("allToAll", c.rows(9, c.rank.index() * c.count, c.count), receive);
        });
    }

    @ParameterizedTest
    @MethodSource("rankCounts")
    void transfersRoundARing(int ranks) {
        onEach(ranks, c -> {
            int next = (c.rank.index() + 1) % ranks;
            int last = (c.rank.index() + ranks - 1) % ranks;
            Tensor send = c.filled(10, c.count);
            Tensor receive = c.empty(c.count);
            Communicator.group(() -> {
                c.rank.communicator().send(send, next, c.stream());
                c.rank.communicator().receive(receive, last, c.stream());
            });
            c.assertHolds("send and receive", RankValues.row(10, last, c.count), receive);
        });
    }

    @ParameterizedTest
    @MethodSource("rankCounts")
    void premultipliedSum(int ranks) {
        onEach(ranks, c -> {
            if (c.dtype.isFloat8()) {
                return; // refused
            }
            Tensor tensor = c.filled(11, c.count);
            try (PremultipliedSum sum = c.rank.communicator().premultipliedSum(c.dtype, c.rank.index() + 1)) {
                c.rank.communicator().allReduce(tensor, tensor, sum, c.stream());
            }
            double[] expected = new double[c.count];
            for (int i = 0; i < c.count; i++) {
                for (int of = 0; of < ranks; of++) {
                    expected[i] += (of + 1) * RankValues.value(11, of, i);
                }
            }
            c.assertHolds("pre-multiplied sum", expected, tensor);
        });
    }

    @ParameterizedTest
    @MethodSource("rankCounts")
    void aGroupOfSeveralCommunicators(int ranks) {
        DevicesNeeded.assume(ranks);
        Ranks.local(ranks).each(rank -> {
            try (Communicator second = rank.communicator()
                            .split(
                                    0,
                                    -rank.index(),
                                    CommunicatorConfig.standard().withName("second"));
                    Scope scope = rank.device().openScope()) {
                assertEquals(ranks - 1 - rank.index(), second.rank());
                Stream stream = rank.device().stream();
                Tensor a = scope.tensor(DType.FLOAT32, 3);
                Tensor b = scope.tensor(DType.INT32, ranks);
                a.set(stream, 1f, 2f, rank.index());
                b.zero(stream);
                Tensor place = scope.view(b, second.rank(), 1);
                place.set(stream, rank.index());
                Communicator.group(() -> {
                    rank.communicator().allReduce(a, a, Reduction.SUM, stream);
                    second.allGather(place, b, stream);
                });
                float sum = ranks * (ranks - 1) / 2f;
                assertArrayEquals(new float[] {ranks, 2 * ranks, sum}, a.toFloats(stream));
                assertArrayEquals(
                        IntStream.range(0, ranks).map(i -> ranks - 1 - i).toArray(), b.toInts(stream));
            }
        });
    }
}
