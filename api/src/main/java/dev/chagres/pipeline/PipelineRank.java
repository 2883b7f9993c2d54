package dev.chagres.pipeline;

import dev.chagres.DType;
import dev.chagres.MemoryUse;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.nccl.Communicator;
import org.jspecify.annotations.Nullable;

/**
 * What all runs of one rank of a pipeline have in common.
 *
 * <p>Threading: the device's thread.
 *
 * @param ranks those of the pipeline
 * @param stream on which everything is enqueued
 */
record PipelineRank(PipelinePlan plan, Communicator ranks, Stream stream, PipelinePlaces places) {
    /** Returns whether a stage is the last one of the model. */
    boolean isLast(int stage) {
        return stage == plan.stages() - 1;
    }

    @Override
    public String toString() {
        return "pipeline of " + plan.stages() + " stages, rank " + ranks.rank() + " of " + ranks.ranks();
    }

    /**
     * Buffers of transfers between stages that do not lie in a pass: received inputs of a call, and results until they are sent.
     */
    static final class PipelinePlaces implements AutoCloseable {
        private final DType dtype;
        private final long width;
        private final Scope room;
        private @Nullable Tensor receiving;
        /** The received part of it. */
        private @Nullable Tensor received;
        /** By place. */
        private @Nullable Tensor[] memory = new Tensor[0];
        /** The part of each that is the result. */
        private @Nullable Tensor[] results = new Tensor[0];

        PipelinePlaces(DType dtype, long width, Stream stream) {
            this.dtype = dtype;
            this.width = width;
            room = stream.device().openScope(stream).countedAs(MemoryUse.Holder.COLLECTIVES);
        }

        /** Allocates the buffers of a run, whose longest micro-batch has {@code tokens}. Old content is lost. */
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

        /** Returns memory of {@code scope} for a transfer of a micro-batch. */
        Tensor tensor(Scope scope, long tokens) {
            return scope.tensor(dtype, tokens, width);
        }

        /** Makes room for the input of the next call. */
        void receive(long tokens) {
            received = room.view(Checks.given("receiving", receiving), 0, tokens, width);
        }

        /** Returns the input of the next call, after {@link #receive}. */
        Tensor received() {
            return Checks.given("received", received);
        }

        /** Returns the buffer for a call's result. */
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
}
