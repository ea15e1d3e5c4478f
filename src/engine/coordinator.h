#pragma once

#include <atomic>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "engine/device_use.h"
#include "engine/gradient_view.h"
#include "engine/job_record.h"
#include "engine/job_setup.h"
#include "engine/task_pool.h"
#include "engine/value_walk.h"
#include "hydra/core/inbox.h"
#include "hydra/core/log.h"
#include "hydra/core/trace.h"
#include "hydra/device/device.h"
#include "hydra/memory/host_arena.h"
#include "hydra/memory/tier_budget.h"
#include "hydra/residency/shard_store.h"
#include "hydra/schedule/forecast.h"
#include "hydra/schedule/policy.h"

namespace hydra {

/// What hears of steps and ends of jobs. Called on the coordinator's thread; brief.
struct StepListener {
  std::function<void(JobId job, const std::string& name, const StepMetrics& metrics)> step;
  std::function<void(JobId job)> ended;
};

/// What the coordinator is made with. Pointers and references outlive it.
struct CoordinatorOptions {
  std::vector<Device*> devices;
  TierBudget* host_budget = nullptr;
  HostArena* host_arena = nullptr;
  /// The storage tier; without it all parts have their homes in host memory.
  std::optional<ExtentStoreOptions> storage;
  TierBudget* host_cache = nullptr;  ///< pays for host copies of parts on storage
  const Policy* policy = nullptr;
  const Clock* clock = nullptr;
  TraceSink* trace = nullptr;
  LogSink* log = nullptr;
  StepListener listener;  ///< each function may be empty
  int threads_per_device = 1;
  int update_threads = 1;
  int loader_depth = 2;
  ShardStore::Options store;
  bool reverse_ready_order = false;  ///< test setting: the youngest eligible job first
};

/// The one thread that decides: it owns the job table, the residency table and the schedule as
/// plain data, takes completions out of its inbox, and posts commands to devices and workers. It
/// never computes, copies or waits for anything but its inbox.
///
/// Thread safety: the public functions are thread-safe; everything else is confined to its thread.
class Coordinator {
 public:
  explicit Coordinator(CoordinatorOptions options);
  ~Coordinator();

  /// Runs the pilot on the smallest device once that device is free. Blocks: until it is done.
  /// Errors: the pilot's; InvalidArgument when the coordinator is closed, also meanwhile.
  PilotResult run_pilot(const Model& model, const ModelSchema& schema, const Batch& worst,
                        std::uint64_t seed);
  struct Submitted {
    std::shared_ptr<JobShared> shared;
    JobHandle handle;
  };
  /// Takes in a prepared job. Errors: InvalidArgument once the coordinator is closed.
  Submitted submit(std::shared_ptr<const PreparedJob> prepared, JobInputs inputs);
  /// How each device's time was spent so far.
  const DeviceUse& device_use() const { return use_; }
  /// The storage tier, for its `stats` and `backend`; null: there is none.
  const ExtentStore* extents() const { return extents_.get(); }
  /// What jobs have been granted of the drives; null: there are none.
  const TierBudget* storage_budget() const { return storage_budget_ ? &*storage_budget_ : nullptr; }
  /// Cancels what still runs, waits for everything in flight, stops. Idempotent.
  void close() noexcept;

 private:
  using UnitId = std::int64_t;
  using WalkId = std::int64_t;

  // Messages.
  struct Submit {
    std::shared_ptr<const PreparedJob> prepared;
    JobInputs inputs;
    std::shared_ptr<JobShared> shared;
  };
  struct Cancel {
    JobId job;
  };
  /// Ends a job at its next step border.
  struct StopJob {
    JobId job;
  };
  struct Pilot {
    std::function<void(Device&)> run;  ///< on the device's worker
  };
  struct PilotDone {
    DeviceId device;
  };
  struct StepInitialised {
    JobId job;
    std::shared_ptr<InitialisedStep> made;
    std::exception_ptr failure;
  };
  struct BatchReady {
    JobId job;
  };
  struct UnitComputed {
    UnitId unit;
    std::shared_ptr<UnitOutcome> outcome;
  };
  struct UnitBegan {
    UnitId unit;
  };
  struct UnitEmitted {
    UnitId unit;
    std::exception_ptr failure;
  };
  struct UnitDrained {
    UnitId unit;
    std::exception_ptr failure;
  };
  struct TieCombined {
    JobId job;
    std::size_t tie;
    float* gradient;
    double square_sum;
  };
  struct ShardUpdated {
    JobId job;
    std::size_t shard;
    std::optional<HostClaimId> claim;  ///< none: it has nothing to train
  };
  struct TieUpdated {
    JobId job;
    std::size_t tie;
    HostClaimId claim;
  };
  struct StepTold {
    JobId job;
    std::int64_t step;
    StepDecision decision;
    std::exception_ptr failure;
  };
  struct GradientsEdited {
    JobId job;
    std::shared_ptr<std::vector<GradientView>> views;  ///< with their new square sums
    std::exception_ptr failure;
  };
  struct ReadWeights {
    JobId job;
    std::shared_ptr<WeightsReading> reading;
  };
  struct ShardVisited {
    WalkId walk;
    std::exception_ptr failure;
  };
  /// A finished job's last handle has gone.
  struct WeightsReleased {
    JobId job;
  };
  struct LoaderClosed {
    JobId job;
  };
  struct Stop {};
  using Message =
      std::variant<Submit, Cancel, StopJob, Pilot, PilotDone, StepInitialised, BatchReady,
                   TransferDone, ExtentStore::Done, UnitComputed, UnitBegan, UnitEmitted,
                   UnitDrained, TieCombined, ShardUpdated, TieUpdated, StepTold, GradientsEdited,
                   ReadWeights, ShardVisited, WeightsReleased, LoaderClosed, Stop>;

  /// A unit that a device will run next: its parts are on their way.
  struct Assignment {
    JobId job;
    std::size_t index = 0;  ///< in the job's program
    Unit unit;
    ShardStore::ClaimId claim = 0;
    std::string_view reason;
    bool loaded = false;  ///< its parts are on the device
  };
  struct Slot {
    Device* device = nullptr;
    DeviceId id;
    std::optional<UnitId> running;
    std::optional<Assignment> next;
    std::deque<Pilot> pilots;
    bool piloting = false;
    std::int64_t in_flight = 0;  ///< units with bytes on the device
  };
  /// What a policy chose, and why.
  struct Choice {
    JobRecord* job = nullptr;
    std::string_view reason;
  };
  /// A unit from its dispatch until nothing of it is under way.
  struct InFlight {
    JobId job;
    DeviceId device;
    std::size_t index = 0;  ///< in the job's program
    Unit unit;
    std::int64_t step = 0;
    ShardStore::ClaimId claim = 0;
    Reservation workspace;
    std::shared_ptr<UnitCommand> command;
    std::shared_ptr<UnitOutcome> outcome;
    bool alone = false;  ///< it ran out of memory before: nothing else comes to its device
    bool begun = false;  ///< its first micro-batch has been handed on
    bool emitted = false;
    bool drained = false;
  };

  // The loop (coordinator.cpp).
  void run();
  void take_messages();
  void take(Message& message);
  void answer_undelivered(JobState state, std::exception_ptr failure) noexcept;
  std::optional<JobId> job_of(const Message& message) const;
  /// Does something for a job; what it throws ends the job (a broken invariant everything). False
  /// then.
  bool guarded(JobRecord& job, const std::function<void()>& call);
  void decide();
  bool start_host_work();
  void transfer_failed(const TransferDone& done);
  void fail_everything(std::exception_ptr failure) noexcept;
  void handle(Submit& message);
  void handle(Cancel& message);
  void handle(StopJob& message);
  void handle(Pilot& message);
  void handle(PilotDone& message);
  void handle(StepInitialised& message);
  void handle(BatchReady& message);
  void handle(TransferDone& message);
  void handle(ExtentStore::Done& message);
  void handle(UnitComputed& message);
  void handle(UnitBegan& message);
  void handle(UnitEmitted& message);
  void handle(UnitDrained& message);
  void handle(TieCombined& message);
  void handle(ShardUpdated& message);
  void handle(TieUpdated& message);
  void handle(StepTold& message);
  void handle(GradientsEdited& message);
  void handle(ReadWeights& message);
  void handle(ShardVisited& message);
  void handle(WeightsReleased& message);
  void handle(LoaderClosed& message);
  void handle(Stop& message);
  JobRecord* find(JobId job);
  JobRecord& job(JobId job);
  Slot& slot(DeviceId device) { return slots_.at(static_cast<std::size_t>(device.value())); }

  // Beginnings and ends of jobs (coordinator_jobs.cpp).
  void admit_jobs();
  bool admit(JobRecord& job, Bytes states, Bytes step);
  void tell_waiting_for_memory(JobRecord& job, Bytes states);
  Bytes held_by_handles() const;
  std::string names_of_held() const;
  void end(JobRecord& job, JobState state, std::exception_ptr failure);
  void close_loader(JobRecord& job);
  void seal_if_done(JobRecord& job);
  void seal(JobRecord& job);
  void finish_sealing(JobRecord& job);
  struct FinalWeights {
    Weights weights;
    Bytes host_bytes;  ///< what they hold of the host budget
  };
  FinalWeights take_weights(JobRecord& job);
  void remove_ended_jobs();
  void remove_if_idle(JobRecord& job);
  bool all_idle(const std::vector<PartId>& parts) const;

  // Initial weights (coordinator_initialisation.cpp).
  void begin_initialisation(JobRecord& job, Reservation memory);
  bool start_initial_steps();
  bool start_initial_step(JobRecord& job);
  std::optional<Reservation> room_for(JobRecord& job, const InitialStep& step);
  void install(JobRecord& job, const InitialStep& step, InitialisedStep& made);
  void install_part(JobRecord& job, const NewPart& part, HostBuffer memory);
  void end_initialisation(JobRecord& job);

  // Parts on storage (coordinator_storage.cpp).
  static Weights read_weights(Inbox<Message>& inbox, JobId job, const PreparedJob& prepared);
  static std::vector<ValueParts> value_parts(const JobRecord& job);
  Bytes keep_weights(JobRecord& job);
  void start_walk(ValueWalk walk);
  bool advance_walks();
  bool advance_walk(WalkId id, ValueWalk& walk);
  static void tell(WeightsReading& reading, const std::exception_ptr& failure);
  void drop_walks_of(JobId job, const std::exception_ptr& failure);
  void kept_part_failed(KeptWeights& kept, JobId job, const TransferDone& done);
  void remove_released_weights();
  PartUse use_of(const JobRecord& job, const NewPart& part) const;
  double next_host_use(PartId part) const;
  void prefetch_ahead();
  void add_parts_of_unit(const JobRecord& job, std::size_t ahead,
                         std::vector<PartId>& wanted) const;

  // Which unit a device runs next (coordinator_schedule.cpp).
  void schedule();
  void serve(Slot& slot);
  bool serve_pilot(Slot& slot);
  void choose_next(Slot& slot);
  std::optional<Choice> choose_among(const Slot& slot, const std::vector<JobRecord*>& candidates);
  std::optional<Decision> ask_policy(const ScheduleView& view);
  void claim(Slot& slot, JobRecord& job, std::string_view reason);
  void give_up_next(Slot& slot);
  void give_up_from(JobRecord& job, std::size_t first);
  void steal_for(Slot& slot);
  void roll_on(Slot& slot);
  bool claimable(const JobRecord& job, const Slot& slot) const;
  bool can_roll(const JobRecord& job, const Slot& slot) const;
  std::size_t next_to_roll(const JobRecord& job, const Slot& slot) const;
  std::size_t first_claimed_ahead(const JobRecord& job) const;
  std::int64_t micro_batches(const JobRecord& job) const;
  bool parameters_settled(const JobRecord& job, const Unit& unit) const;
  bool may_start(const Assignment& next) const;
  bool may_run_on(const JobRecord& job, const Slot& slot) const;
  JobView view_of(const JobRecord& job, const Slot& slot) const;
  double next_use(PartId part) const;

  // Units on devices (coordinator_units.cpp).
  bool try_dispatch(Slot& slot);
  void dispatch(Slot& slot, Reservation workspace);
  std::shared_ptr<UnitCommand> make_command(JobRecord& job, const Assignment& assignment);
  void add_resident_update(JobRecord& job, const Assignment& assignment, UnitCommand& command);
  Bytes draining_bytes(const InFlight& flight);
  void land(JobRecord& job, UnitId unit);
  void rewind(JobRecord& job, std::size_t unit);
  void unit_failed(JobRecord& job, const InFlight& flight);
  void resident_step_done(JobRecord& job, const InFlight& flight);
  Activity activity_of(const Slot& slot) const;
  void account_for_devices();
  void account_for(const Slot& slot, Activity activity, Nanoseconds now);
  std::string describe(const JobRecord& job, const Unit& unit, std::int64_t step) const;
  void finish_if_landed(UnitId unit);

  // Steps (coordinator_steps.cpp).
  void begin_steps();
  void begin_steps_in_turn();
  bool begin_step(JobRecord& job);
  bool take_batch(JobRecord& job);
  bool take_step_memory(JobRecord& job);
  void give_back_memory_that_others_want(const std::vector<JobRecord*>& at_border);
  bool others_wait_for_memory(const JobRecord& job) const;
  void release_step_memory(JobRecord& job);
  void advance(JobRecord& job);
  void end_step(JobRecord& job);
  void report_step(JobRecord& job, std::int64_t step, double loss, double gradient_norm,
                   std::int64_t tokens);
  void forecast(Nanoseconds now);
  static std::int64_t steps_after(const JobRecord& job);
  Nanoseconds remaining_time(const JobRecord& job) const;

  // Gradients and updates (coordinator_updates.cpp).
  void gradients_arrived(JobRecord& job, const InFlight& flight);
  void combine_tie(JobRecord& job, std::size_t tie);
  void update_when_complete(JobRecord& job);
  void update_with_whole_gradient(JobRecord& job);
  void plan_update(JobRecord& job, bool of_tie, std::size_t index, std::int64_t step, float factor);
  bool start_updates();
  bool start_update(PendingUpdate& update);
  std::vector<PartId> parts_of(const PendingUpdate& update);
  std::byte* begin_host_write(HostClaimId claim, PartId part);
  void start_shard_update(JobRecord& job, const PendingUpdate& update);
  void start_tie_update(JobRecord& job, const PendingUpdate& update);
  void drop_updates(JobRecord& job);
  void end_update(JobRecord& job, std::optional<HostClaimId> claim);

  // Whether anything is still to come (coordinator_watchdog.cpp).
  bool something_can_move() const;
  std::string where_jobs_stand() const;

  // The trace (coordinator_trace.cpp).
  void trace_task(const char* track, const char* category, const std::string& name,
                  Nanoseconds start);
  void trace_wait(const Slot& slot, const DeviceUse::Ended& ended, Nanoseconds now);
  void trace_counters(Nanoseconds now);

  // Callbacks (coordinator_callbacks.cpp).
  void start_callback_worker(JobRecord& job);
  void tell_step(JobRecord& job, const StepMetrics& metrics);
  bool waits_for_callback(const JobRecord& job) const;
  std::vector<GradientView> gradient_views(const JobRecord& job) const;
  void edit_gradients(JobRecord& job);

  void post(Message message) { inbox_->push(std::move(message)); }

  CoordinatorOptions options_;
  DeviceUse use_;
  TimeLeft time_left_;
  std::optional<Nanoseconds> forecast_at_;
  std::shared_ptr<Inbox<Message>> inbox_;
  std::atomic<std::int64_t> next_job_{0};
  std::once_flag closed_;

  std::unique_ptr<ExtentStore> extents_;  ///< closed before the store that it moves bytes for goes
  std::optional<TierBudget> storage_budget_;

  // Confined to the thread from here on.
  std::unique_ptr<ShardStore> store_;
  std::vector<Slot> slots_;
  std::map<JobId, std::unique_ptr<JobRecord>> jobs_;
  std::map<UnitId, InFlight> in_flight_;
  std::vector<PendingUpdate> updates_;  ///< of all jobs, in the order in which they became due
  int storage_updates_ = 0;             ///< that have claims on parts on storage
  std::map<WalkId, ValueWalk> walks_;
  std::map<JobId, KeptWeights> kept_;
  struct Held {
    std::string name;
    Bytes bytes;
  };
  std::map<JobId, Held> held_;  ///< host memory of finished jobs' weights, while handles live
  bool policy_failed_ = false;  ///< the log has a line about it
  UnitId next_unit_ = 0;
  WalkId next_walk_ = 0;
  std::int64_t next_ticket_ = 1;
  std::int64_t units_given_ = 0;                         ///< to all jobs
  std::map<std::string, std::int64_t> traced_counters_;  ///< their last values
  bool stopping_ = false;

  std::unique_ptr<TaskPool> pool_;        ///< updates
  std::unique_ptr<TaskPool> job_worker_;  ///< initial and final weights: updates go on meanwhile
  std::thread thread_;
};

}  // namespace hydra
