// Put behind the C++ program that stanc writes, and compiled with it: the model behind functions that ctypes can call.

#include <stan/io/json/json_data.hpp>
#include <stan/model/log_prob_grad.hpp>
#include <stan/services/util/create_rng.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct Handle {
  stan_model* model = nullptr;
  std::string text;
  ~Handle() { delete model; }
};

// Every thread that differentiates needs a tape of its own; Stan makes one for the thread that loads the library.
void need_tape() { static thread_local stan::math::ChainableStack tape; }

// Random numbers of generated quantities follow from the point: other points, other numbers, and the same ones again.
unsigned int seed_of(const std::vector<double>& point) {
  const auto* byte = reinterpret_cast<const unsigned char*>(point.data());
  unsigned int hash = 2166136261u;
  for (std::size_t i = 0; i < point.size() * sizeof(double); ++i) hash = (hash ^ byte[i]) * 16777619u;
  return hash;
}

const double NOTHING = std::numeric_limits<double>::quiet_NaN();

}  // namespace

extern "C" {

// The handle is to be closed also where the data were refused: then `klover_text` says why, and `klover_dim` is -1.
Handle* klover_open(const char* data) {
  need_tape();
  auto* handle = new Handle;
  try {
    std::istringstream stream(data);
    stan::json::json_data context(stream);
    handle->model = new stan_model(context, 0, nullptr);
  } catch (const std::exception& error) {
    handle->text = error.what();
  }
  return handle;
}

void klover_close(Handle* handle) { delete handle; }

const char* klover_text(Handle* handle) { return handle->text.c_str(); }

long klover_dim(Handle* handle) { return handle->model ? static_cast<long>(handle->model->num_params_r()) : -1; }

// Names of the parameters, or of all quantities, separated by blanks.
const char* klover_names(Handle* handle, int is_complete) {
  std::vector<std::string> names;
  handle->model->constrained_param_names(names, is_complete, is_complete);
  handle->text.clear();
  for (const auto& name : names) handle->text += name + " ";
  return handle->text.c_str();
}

// Log densities with all constants and the Jacobian, and gradients unless that pointer is null. A point that the program
// rejects has density 0. Any other error leaves NaN; how many points had one is returned, and which was the first.
long klover_evaluate(Handle* handle, long num_points, const double* points, double* values, double* gradients,
                     long* first) {
  need_tape();
  const auto dim = handle->model->num_params_r();
  long num_raised = 0;
  std::vector<int> none;
  std::vector<double> gradient;
  for (long i = 0; i < num_points; ++i) {
    std::vector<double> point(points + i * dim, points + (i + 1) * dim);
    gradient.assign(dim, 0.0);
    try {
      values[i] = gradients ? stan::model::log_prob_grad<false, true>(*handle->model, point, none, gradient)
                            : handle->model->log_prob<false, true>(point, none);
    } catch (const std::domain_error&) {
      values[i] = -std::numeric_limits<double>::infinity();
    } catch (const std::exception& error) {
      values[i] = NOTHING;
      if (num_raised++ == 0) {
        handle->text = error.what();
        *first = i;
      }
    }
    if (gradients) std::copy(gradient.begin(), gradient.end(), gradients + i * dim);
  }
  return num_raised;
}

// Parameters, and if asked for transformed parameters and generated quantities; NaN where the program fails.
void klover_constrain(Handle* handle, long num_points, const double* points, int is_complete, long num_values,
                      double* values) {
  need_tape();
  const auto dim = handle->model->num_params_r();
  std::vector<int> none;
  std::vector<double> found;
  for (long i = 0; i < num_points; ++i) {
    std::vector<double> point(points + i * dim, points + (i + 1) * dim);
    auto generator = stan::services::util::create_rng(seed_of(point), 1);
    try {
      handle->model->write_array(generator, point, none, found, is_complete, is_complete, nullptr);
    } catch (const std::exception&) {
      found.assign(num_values, NOTHING);
    }
    std::copy(found.begin(), found.end(), values + i * num_values);
  }
}

// Unconstrained points of constrained parameters; NaN where these lie outside their constraints.
void klover_unconstrain(Handle* handle, long num_points, long num_values, const double* values, double* points) {
  need_tape();
  const auto dim = handle->model->num_params_r();
  std::vector<double> found;
  for (long i = 0; i < num_points; ++i) {
    std::vector<double> value(values + i * num_values, values + (i + 1) * num_values);
    try {
      handle->model->unconstrain_array(value, found, nullptr);
    } catch (const std::exception&) {
      found.assign(dim, NOTHING);
    }
    std::copy(found.begin(), found.end(), points + i * dim);
  }
}

}  // extern "C"
