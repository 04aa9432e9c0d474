// A chat as the AI SDK has it, on the endpoints of a server: docs/chat.md shows the same.
import { useEffect, useRef } from 'react';
import { createRoot } from 'react-dom/client';
import { useChat } from '@ai-sdk/react';
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from 'ai';

const query = new URL(location.href).searchParams;
const id = query.get('session');
const path = `/api/chat/${encodeURIComponent(id)}`;
// A client of a version that does not know `reset-step` says so, and is told to resume instead.
const headers = query.get('resets') === 'resume' ? { 'x-perdure-reset': 'resume' } : {};
const transport = new DefaultChatTransport({ api: '/api/chat', headers });

function Chat({ initial }) {
  const again = useRef(false);
  const { messages, status, error, resumeStream, ...chat } = useChat({
    id,
    messages: initial,
    transport,
    resume: true,
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
    onData: (part) => {
      if (part.type === 'data-perdure-resume') again.current = true;
    },
    onFinish: () => {
      if (again.current) resumeStream();
      again.current = false;
    },
  });
  useEffect(() => {
    if (!error) return;
    const soon = setTimeout(resumeStream, 1000);
    return () => clearTimeout(soon);
  }, [error, resumeStream]);
  const say = (form) => chat.sendMessage({ text: form.get('words') });
  const headers = { 'content-type': 'application/json' };
  const stop = () => fetch(`${path}/stop`, { method: 'POST', headers });
  return (
    <main data-status={status}>
      {messages.map((message) => (
        <article key={message.id} className={message.role} data-id={message.id}>
          {message.parts.map((part, index) => (
            <Part key={index} part={part} answer={chat.addToolApprovalResponse} />
          ))}
        </article>
      ))}
      <form action={say}>
        <input name="words" aria-label="Message" />
      </form>
      <button onClick={stop}>Stop</button>
      <button onClick={() => chat.regenerate()}>Regenerate</button>
    </main>
  );
}

function Part({ part, answer }) {
  if (part.type === 'text') return <p className="text">{part.text}</p>;
  if (!part.type.startsWith('tool-')) return null;
  const say = (approved) => () => answer({ id: part.approval.id, approved });
  return (
    <section className="tool" aria-label={part.type.slice(5)} data-state={part.state}>
      {part.state === 'approval-requested' && (
        <>
          <button onClick={say(true)}>Approve</button>
          <button onClick={say(false)}>Deny</button>
        </>
      )}
    </section>
  );
}

const initial = await (await fetch(`${path}/messages`)).json();
createRoot(document.getElementById('root')).render(<Chat initial={initial} />);
